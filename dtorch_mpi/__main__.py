"""The commands of `python -m dtorch_mpi`: run, launch, info, doctor."""

import argparse
import sys

from dtorch_mpi.version import __version__

USAGE = """\
usage: python -m dtorch_mpi run    SCRIPT [ARGS ...]
       python -m dtorch_mpi run    -m MODULE [ARGS ...]
       python -m dtorch_mpi run    -c COMMAND [ARGS ...]
       python -m dtorch_mpi launch -n N [--max-restarts K [--min-workers M]] [--launcher NAME]
                                   [--dry-run] SCRIPT [ARGS ...]
       python -m dtorch_mpi info
       python -m dtorch_mpi doctor [--folder PATH]
       python -m dtorch_mpi --help | --version
"""


def _parsers():
    top = argparse.ArgumentParser(
        prog="python -m dtorch_mpi", usage=USAGE[len("usage: "):], allow_abbrev=False,
        description="Run one PyTorch program on all ranks of an MPI job.")
    top.add_argument("--version", action="version", version=f"dtorch-mpi {__version__}")
    commands = top.add_subparsers(
        prog=top.prog, dest="command", required=True, metavar="{run,launch,info,doctor}")
    commands.add_parser(
        "run", add_help=False,
        help="inside mpirun or srun: rank 0 runs the script, the other ranks serve as workers; "
             "without a launcher, one process does both")
    launch = commands.add_parser(
        "launch", allow_abbrev=False, usage="python -m dtorch_mpi launch -n N "
        "[--max-restarts K [--min-workers M]] [--launcher NAME] [--dry-run] "
        "SCRIPT | -m MODULE | -c COMMAND [ARGS ...]",
        help="from a shell: find the launcher and start such a job with it")
    launch.add_argument("-n", type=int, required=True, dest="num_ranks", metavar="N",
                        help="number of ranks, the one that runs the script among them")
    launch.add_argument("--launcher", metavar="NAME",
                        help="mpirun, srun, or the path of one; the default is srun inside a "
                             "Slurm allocation, else the mpirun of the MPI that mpi4py loads")
    launch.add_argument("--max-restarts", type=int, default=0, metavar="K",
                        help="start the job again, up to K times, when it fails; the script loads "
                             "its last checkpoint. Not after exit codes 0, 2 (usage), 85 (to be "
                             "requeued) and 130, nor when launch is told to stop")
    launch.add_argument("--min-workers", type=int, metavar="M",
                        help="with one rank less after each death of a worker's process, down to "
                             "M ranks beside rank 0")
    launch.add_argument("--dry-run", action="store_true", help="print the command only")
    info = commands.add_parser(
        "info", allow_abbrev=False, usage="python -m dtorch_mpi info",
        help="the versions built against and running, the libraries, devices and settings")
    info.add_argument("--group", help=argparse.SUPPRESS)  # what info asks of processes of its own
    doctor = commands.add_parser(
        "doctor", allow_abbrev=False, usage="python -m dtorch_mpi doctor [--folder PATH]",
        help="check that a job can work here; under mpirun or srun, all its ranks")
    doctor.add_argument("--folder", default=".", metavar="PATH",
                        help="where checkpoints shall go (default: here)")
    return top, launch


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    top, launch_parser = _parsers()
    if argv[:1] == ["run"]:
        # argparse would take the script's own options for ours.
        _run(argv[1:], top)
        return
    if argv[:1] == ["launch"]:
        ours, rest = _split(argv[1:])
        arguments = launch_parser.parse_args(ours)
        _launch(arguments, rest, launch_parser)
        return
    arguments = top.parse_args(argv)
    if arguments.command == "info":
        from dtorch_mpi import info

        info.main(arguments.group)
    else:
        from dtorch_mpi import doctor

        sys.exit(doctor.main(arguments.folder))


def _run(argv, top):
    if argv[:1] in ([], ["-h"], ["--help"]):
        top.print_help()
        sys.exit(0 if argv else 2)
    from dtorch_mpi.launch import script

    try:
        script.prepare(argv)
    except (ValueError, FileNotFoundError) as error:
        top.error(str(error))
    import dtorch_mpi

    dtorch_mpi.init()  # worker ranks stay in here
    script.run_script(argv)


def _launch(arguments, rest, launch_parser):
    if not rest:
        launch_parser.error("nothing to run: give a script, -m MODULE or -c COMMAND")
    from dtorch_mpi.launch import command

    try:
        command.launch(arguments.num_ranks, rest, arguments.launcher, arguments.dry_run,
                       arguments.max_restarts, arguments.min_workers)
    except (ValueError, FileNotFoundError, RuntimeError) as error:
        launch_parser.error(str(error))


def _split(argv):
    """Launch's own options, and what stands from the script (or -m, -c) on."""
    index = 0
    while index < len(argv):
        word = argv[index]
        if word in ("-m", "-c") or not word.startswith("-"):
            break
        index += 2 if word in ("-n", "--launcher", "--max-restarts", "--min-workers") else 1
    return argv[:index], argv[index:]


if __name__ == "__main__":
    main()
