"""Every error that RLVitals raises on purpose.

RLVitalsError                 a sentence a person can act on; the command line prints it and exits 2
+- ReaderError                a file that cannot be read at all (a bad row is a Reject, not an error)
+- StoreError                 the telemetry store cannot be opened or written
|  +- StoreOwned              another process owns the home
|  +- StoreNewer              the store was written by a newer program
+- NoRunFound                 the path holds nothing that a reader knows
+- SettingsError              an unknown or ill-typed setting
+- NotBuilt                   a command or option that is announced and not there yet
"""


class RLVitalsError(Exception):
    """Base of all errors with a message for people: what was read, where, what was expected, what to do."""


class ReaderError(RLVitalsError):
    """A file that cannot be read at all."""


class StoreError(RLVitalsError):
    """The telemetry store cannot be opened or written."""


class StoreOwned(StoreError):
    """Another process owns the home."""


class StoreNewer(StoreError):
    """The store was written by a newer program than this one."""


class NoRunFound(RLVitalsError):
    """The path holds no run that any reader knows."""


class SettingsError(RLVitalsError):
    """An unknown or ill-typed setting."""


class NotBuilt(RLVitalsError):
    """A command or option that is announced and not there yet."""
