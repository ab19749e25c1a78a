"""The one exception for mistakes that a user can mend."""


class UserError(Exception):
    """What is wrong, where, and what to do, in one line. The command line prints it and exits with status 2."""
