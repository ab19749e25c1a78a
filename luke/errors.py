"""The exceptions for mistakes that a user can mend."""


class UserError(Exception):
    """What is wrong, where, and what to do, in one line. The command line prints it and exits with status 2."""


class InterruptedWorkError(UserError):
    """The input was not at fault, so what is finished is kept: the same command continues from it."""
