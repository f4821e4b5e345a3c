"""Run a script, a module or a command as `__main__`, as the python command does."""

import builtins
import hashlib
import io
import os
import runpy
import sys
import types
from importlib.machinery import PathFinder, SourceFileLoader

# The script that `python -m dtorch_mpi run` is about to run: (path or None, command or None).
_prepared = None


def prepare(argv):
    """Set sys.argv and sys.path[0] as python would for `argv`; run_script(argv) calls it.

    Called before dtorch_mpi.init() it makes the script known to the check that all ranks have
    the same one.

    Args:
        argv: ["script.py", ...], ["-m", "module", ...] or ["-c", "command", ...].

    Raises:
        ValueError: nothing to run, or an option that is not -m or -c.
        FileNotFoundError: the script or module does not exist.
    """
    global _prepared
    kind, target, arguments = _parse(argv)
    if kind == "-c":
        _set_path("")
        sys.argv = ["-c", *arguments]
        _prepared = (None, target)
    elif kind == "-m":
        _set_path(os.getcwd())
        sys.argv = [_find_module(target), *arguments]
        _prepared = (sys.argv[0], None)
    else:
        if not os.path.exists(target):
            raise FileNotFoundError(
                f"no script {target!r} in {os.getcwd()}; give the path of a Python file, or "
                "-m MODULE, or -c COMMAND")
        # A folder or zip file with a __main__.py goes onto the path itself.
        is_file = os.path.isfile(target) and not target.endswith((".zip", ".pyz"))
        _set_path(os.path.dirname(os.path.realpath(target)) if is_file else target)
        sys.argv = [target, *arguments]
        _prepared = (os.path.abspath(target), None)
    return kind, target


def run_script(argv):
    """Run `argv` (see prepare) as `__main__`; returns when it ends, exceptions pass through."""
    kind, target = prepare(argv)
    if kind == "-m":
        runpy.run_module(target, run_name="__main__", alter_sys=True)
        return
    if kind == "-c":
        _execute(compile(target, "<string>", "exec", dont_inherit=True), {})
        return
    if os.path.isdir(target) or target.endswith((".zip", ".pyz")):
        runpy.run_path(target, run_name="__main__")
        return
    path = os.path.abspath(target)
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    _execute(code, {"__file__": path, "__cached__": None,
                    "__loader__": SourceFileLoader("__main__", path)})


def path():
    """The absolute path of the script or module that runs here, or None (-c, a prompt)."""
    if _prepared is not None:
        return _prepared[0]
    file = getattr(sys.modules["__main__"], "__file__", None)
    return os.path.abspath(file) if file else None


def digest():
    """The first 16 hex digits of the SHA-256 of the script's text, or of the command's."""
    file = path()
    if file is not None and os.path.isfile(file):
        with open(file, "rb") as source:
            return hashlib.sha256(source.read()).hexdigest()[:16]
    command = _prepared[1] if _prepared is not None else _command_of(sys.orig_argv)
    return hashlib.sha256((command or "").encode()).hexdigest()[:16]


def _command_of(argv):
    return argv[argv.index("-c") + 1] if "-c" in argv[:-1] else ""


def _parse(argv):
    if not argv:
        raise ValueError("nothing to run: give a script, -m MODULE or -c COMMAND")
    first = argv[0]
    if first in ("-m", "-c"):
        if len(argv) < 2:
            raise ValueError(f"{first} needs {'a module' if first == '-m' else 'a command'}")
        return first, argv[1], argv[2:]
    if first.startswith("-"):
        raise ValueError(f"got option {first!r} before the script; only -m MODULE and -c COMMAND "
                         "can stand there, the script's own options come after it")
    return "", first, argv[1:]


def _set_path(entry):
    # With -P or PYTHONSAFEPATH python puts nothing in front.
    if not sys.flags.safe_path:
        sys.path[0] = entry


def _find_module(name):
    """The file that `-m name` runs, found without importing the packages it is in.

    A worker rank looks for it too, and must not run the user's code.
    """
    search, spec, parts = None, None, name.split(".")
    for index in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[:index + 1]), search)
        if spec is None:
            raise FileNotFoundError(f"no module named {name!r} on sys.path ({sys.path})")
        search = spec.submodule_search_locations
    if search is not None:
        spec = PathFinder.find_spec(f"{name}.__main__", search)
        if spec is None:
            raise FileNotFoundError(f"{name!r} is a package without a __main__.py")
    return spec.origin


def _execute(code, names):
    # The module stays in sys.modules: pickle and atexit functions look there until the end.
    main = types.ModuleType("__main__")
    main.__dict__.update(names, __builtins__=builtins, __spec__=None)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)
