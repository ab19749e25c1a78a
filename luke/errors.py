"""The exceptions that end a command with one line: mistakes that a user can mend, and work that had to stop."""


class UserError(Exception):
    """What is wrong, where, and what to do, in one line. The command line prints it and exits with status 2."""


class InterruptedWorkError(UserError):
    """The input was not at fault, so what is finished is kept: the same command continues from it."""


class StoppedWorkError(Exception):
    """Work that could not go on through no mistake in the command line; printed in one line, exit status 1."""
