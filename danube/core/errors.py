"""The one error tree of Danube, raised by client and broker alike.

    DanubeError
    ├── InvalidRequest            the caller's input is wrong; repeating it cannot help
    │   ├── InvalidName
    │   ├── InvalidFrame          a frame that fails validation at the door
    │   ├── MessageTooLarge
    │   └── InvalidSettings
    ├── NotFound
    │   ├── TopicNotFound
    │   └── SubscriptionNotFound
    ├── AlreadyExists
    ├── FailedPrecondition        the state of the system forbids it until somebody acts
    │   ├── TopicReplaced         same name, another topic id
    │   ├── ProducerFenced        a newer epoch of this producer exists
    │   ├── SequenceGap           unknown producer or a gap in its sequences
    │   ├── SubscriptionBusy      exclusive and taken, or a live Spark run
    │   ├── OwnershipLost         this broker no longer owns the partition
    │   ├── StaleSink             batch id or run older than what the sink has decided
    │   ├── ForeignCommit         somebody else wrote to a topic's table
    │   └── UnsupportedFormat     data of a newer version
    ├── OutOfRange
    │   ├── OffsetOutOfRange
    │   └── DataLost              a recorded lost range lies in the way
    ├── ResourceExhausted         a bound was reached; later or smaller may work
    │   ├── DiskFull
    │   ├── StagedFull
    │   └── MemoryFull
    ├── Unavailable               retry; the broker is starting, moving, stopping or away
    │   └── DeadlineExceeded
    ├── OutcomeUnknown            the request may or may not have been carried out
    ├── Corruption                stored bytes do not match their checksums or each other
    ├── StorageFailed             a disk or an object store failed; the process must stop
    └── Unsupported               not built, or not on this kind of topic

Every message says what happened, to what, and what to do. The mapping to gRPC status codes and
back is one table in ``danube.wire.status``.
"""

from __future__ import annotations


class DanubeError(Exception):
    """Base of every error that Danube raises on purpose."""


class InvalidRequest(DanubeError):
    """The request itself is wrong; sending it again cannot help."""


class InvalidName(InvalidRequest):
    """A namespace, topic, subscription, producer or consumer name breaks the rules."""


class InvalidFrame(InvalidRequest):
    """A frame is truncated, damaged, lies about its contents or has other columns."""


class MessageTooLarge(InvalidRequest):
    """A message or a frame is above the limit of its topic."""


class InvalidSettings(InvalidRequest):
    """A configuration file, environment variable or flag cannot be used."""


class NotFound(DanubeError):
    """The named thing does not exist."""


class TopicNotFound(NotFound):
    """No topic of that name or id."""


class SubscriptionNotFound(NotFound):
    """The topic has no subscription of that name."""


class AlreadyExists(DanubeError):
    """The name is taken."""


class FailedPrecondition(DanubeError):
    """The state of the system forbids the request until somebody acts."""


class TopicReplaced(FailedPrecondition):
    """The topic was deleted and created again: same name, another topic id."""


class ProducerFenced(FailedPrecondition):
    """A newer epoch of this producer exists; this one may not write any more."""


class SequenceGap(FailedPrecondition):
    """The broker does not know this producer, or a sequence number is missing."""


class SubscriptionBusy(FailedPrecondition):
    """The subscription is exclusive and taken, or a live Spark run holds it."""


class OwnershipLost(FailedPrecondition):
    """This broker no longer owns the partition; look the owner up again."""


class StaleSink(FailedPrecondition):
    """The Spark batch or run is older than what its sink has already decided."""


class ForeignCommit(FailedPrecondition):
    """Somebody else committed data, metadata or protocol to a topic's table."""


class UnsupportedFormat(FailedPrecondition):
    """The data was written by a newer version than this one."""


class OutOfRange(DanubeError):
    """A position that does not exist, or no longer."""


class OffsetOutOfRange(OutOfRange):
    """The offset is below the log start offset or above the durable offset."""


class DataLost(OutOfRange):
    """The range asked for contains a recorded lost range."""


class ResourceExhausted(DanubeError):
    """A bound was reached; a later or smaller request may succeed."""


class DiskFull(ResourceExhausted):
    """Free disk space is below the journal's reserve."""


class StagedFull(ResourceExhausted):
    """Staged sets would exceed their share of the disk."""


class MemoryFull(ResourceExhausted):
    """The broker's memory budget is spent."""


class Unavailable(DanubeError):
    """The broker is starting, moving, stopping or away: retry."""


class DeadlineExceeded(Unavailable):
    """No answer in time; whether the request was carried out is known by asking again."""


class OutcomeUnknown(DanubeError):
    """The request may or may not have been carried out and cannot be asked again safely."""


class Corruption(DanubeError):
    """Stored bytes do not match their checksums or each other."""


class StorageFailed(DanubeError):
    """A disk or an object store failed in a way that must stop the process."""


class Unsupported(DanubeError):
    """Not built yet, or impossible on this kind of topic."""


def in_one_line(error: DanubeError) -> DanubeError:
    """An error of the same class whose message has no line break.

    Where only the text of a traceback reaches the user (Spark), its last line has to say it all.
    """
    return type(error)(" ".join(str(error).split()))
