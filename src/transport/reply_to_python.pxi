from libtorch cimport THPVariable_Wrap
from transport.link cimport Reply


# A reply as Python sees it: (value or None, failure or None).
cdef object reply_to_python(const Reply& reply):
    cdef object value = None
    if reply.value.defined():
        value = THPVariable_Wrap(reply.value)
    if reply.failure.get() == NULL:
        return value, None
    cdef str text = reply.failure.get().text.decode("utf-8", "replace")
    cdef str host = reply.failure.get().host.decode("utf-8", "replace")
    return value, (text, reply.failure.get().site, reply.failure.get().record,
                   reply.failure.get().worker, host)
