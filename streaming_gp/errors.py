"""The errors of the toolkit: each says what came and what was wanted."""

from __future__ import annotations

from collections.abc import Mapping


class StreamingGPError(Exception):
    """Base of all errors raised on purpose by this package."""


class InvalidDataError(StreamingGPError, ValueError):
    """Data, labels or arguments that the model cannot take; the model is unchanged."""


class ImproperError(StreamingGPError, ArithmeticError):
    """A cavity or posterior whose density has no finite integral."""


class NumericalError(StreamingGPError, ArithmeticError):
    """A matrix that stayed indefinite, or an objective that stayed non-finite."""


class ForkedError(StreamingGPError, RuntimeError):
    """A process that was forked after TensorFlow had run, in which it would wait for ever."""


class BudgetSpentError(StreamingGPError, RuntimeError):
    """A client whose privacy budget is spent declines to answer."""


class NoAnswerError(StreamingGPError, RuntimeError):
    """Rounds in which every client failed or was refused; the posterior is what it was.

    :param reasons: Why each client was not heard, the last time, by client.
    """

    def __init__(self, message: str, reasons: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.reasons = dict(reasons or {})


class FileFormatError(InvalidDataError):
    """A file or journal that is damaged, foreign, or of a later version; nothing was loaded."""


class PoorFitWarning(UserWarning):
    """A fit far worse than another one, or that takes all for noise; the model has learned it."""


class ChangeWarning(UserWarning):
    """Observations say that the function has changed, and a part of what was known is forgotten."""


class PrivacyWarning(UserWarning):
    """What leaves a site holds rows of its data, as it was set to.

    As an error (``warnings.simplefilter``) nothing leaves.
    """


class OverconfidenceWarning(UserWarning):
    """Predicted standard deviations will be far too small; the model has learned all the same.

    As an error (``warnings.simplefilter``) it refuses the update, and the model is unchanged.
    """
