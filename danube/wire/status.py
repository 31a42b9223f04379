"""One table between core's errors and gRPC status codes, read in both directions.

The status code is all that foreign Danube clients look at: they retry UNAVAILABLE,
DEADLINE_EXCEEDED and RESOURCE_EXHAUSTED and give up on the rest. Ours also get the exact class: its
name travels in the trailing metadata :data:`ERROR_METADATA`, or in a ``Failure`` inside a stream
that goes on, so that the same class is raised on both sides.

Servicers raise core errors and nothing else; :class:`GuardInterceptor` (whole server) or
:func:`guarded` (one method) turns them into statuses. What is not a ``DanubeError`` is a bug: the
caller gets INTERNAL with an id, the log the traceback under the same id.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeAlias, TypeVar, cast

import grpc
import grpc.aio

from danube.core import errors
from danube.core.errors import DanubeError
from danube.core.telemetry import get_logger
from danube.wire._generated import DanubeBatch_pb2 as pb

log = get_logger(__name__)

ERROR_METADATA: Final = "danube-error"
"""Trailing metadata key that carries the class name of a core error."""

MAX_DETAILS_BYTES: Final = 6 * 1024
"""Longest message sent as status details, percent-encoded: metadata of one call has 8 KiB."""

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
"""What servicer methods take as ``context``."""

STATUS_OF: Final[Mapping[type[DanubeError], grpc.StatusCode]] = MappingProxyType(
    {
        DanubeError: grpc.StatusCode.INTERNAL,
        errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
        errors.NotFound: grpc.StatusCode.NOT_FOUND,
        errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
        errors.FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
        errors.OutOfRange: grpc.StatusCode.OUT_OF_RANGE,
        errors.ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
        errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
        errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
        errors.OutcomeUnknown: grpc.StatusCode.UNKNOWN,
        errors.Corruption: grpc.StatusCode.DATA_LOSS,
        errors.StorageFailed: grpc.StatusCode.INTERNAL,
        errors.Unsupported: grpc.StatusCode.UNIMPLEMENTED,
        # Exceptions to what the class above them says. A moved partition is found by asking again,
        # and that is what UNAVAILABLE makes every client do.
        errors.OwnershipLost: grpc.StatusCode.UNAVAILABLE,
        errors.DataLost: grpc.StatusCode.DATA_LOSS,
    }
)
"""The table. A class that is not in it has the code of its nearest ancestor that is."""

_CLASS_OF: Final[Mapping[grpc.StatusCode, type[DanubeError]]] = MappingProxyType(
    {
        # The first class of a code speaks for it when no class name came along.
        **{code: kind for kind, code in reversed(list(STATUS_OF.items()))},
        # Codes that our broker never sends; proxies and grpc itself do.
        grpc.StatusCode.CANCELLED: errors.Unavailable,
        grpc.StatusCode.ABORTED: errors.FailedPrecondition,
        grpc.StatusCode.PERMISSION_DENIED: errors.FailedPrecondition,
        grpc.StatusCode.UNAUTHENTICATED: errors.FailedPrecondition,
    }
)

RETRYABLE_CODES: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
"""What a client may send again; the same three in every Danube client."""

_NAMED: Final[Mapping[str, type[DanubeError]]] = MappingProxyType(
    {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, DanubeError)
    }
)
_CODE_BY_NUMBER: Final = MappingProxyType({code.value[0]: code for code in grpc.StatusCode})


def status_of(error: DanubeError) -> grpc.StatusCode:
    """The gRPC status code for ``error``."""
    for kind in type(error).__mro__:
        if kind in STATUS_OF:
            return STATUS_OF[kind]
    raise AssertionError("DanubeError is in the table")  # and everything here descends from it


def wire_name(error: DanubeError) -> str:
    """Name of the nearest class of ``error`` that every side knows: one of ``danube.core.errors``.

    Rooms have finer classes of their own; over the wire those are what they specialise.
    """
    for kind in type(error).__mro__:
        if _NAMED.get(kind.__name__) is kind:
            return kind.__name__
    raise AssertionError("DanubeError is a core error")


def is_retryable(error: BaseException) -> bool:
    """Whether the same request may succeed when it is sent again later."""
    if isinstance(error, DanubeError):
        return status_of(error) in RETRYABLE_CODES
    return isinstance(error, grpc.RpcError) and _code_of(error) in RETRYABLE_CODES


# --- inside streams -----------------------------------------------------------------------------


def failure_of(error: DanubeError) -> pb.Failure:
    """``error`` as a message, for a stream that goes on after it."""
    code = cast("tuple[int, str]", status_of(error).value)[0]
    return pb.Failure(code=code, reason=wire_name(error), message=str(error))


# --- client side --------------------------------------------------------------------------------


def error_of(source: grpc.RpcError | pb.Failure, doing: str | None = None) -> DanubeError:
    """The core error that a failed call, or a ``Failure`` inside a stream, stands for.

    Args:
        source: what grpc raised, or what :func:`failure_of` made.
        doing: what was attempted and with what, put in front of messages that grpc made itself
            (no broker, no answer), which know nothing about it.
    """
    if isinstance(source, pb.Failure):
        number = _CODE_BY_NUMBER.get(source.code, grpc.StatusCode.UNKNOWN)
        return _class_for(source.reason, number)(source.message)
    code = _code_of(source)
    name = _trailing(source, ERROR_METADATA)
    kind = _class_for(name, code)
    details = cast(Any, source).details() or code.name
    if name:
        return kind(details)
    return kind((f"{doing}: " if doing else "") + _explain(code, details))


def raise_from_rpc_error(error: grpc.RpcError, doing: str | None = None) -> NoReturn:
    """Raise :func:`error_of`, with ``error`` as its cause."""
    raise error_of(error, doing) from error


@contextmanager
def danube_errors(doing: str | None = None) -> Iterator[None]:
    """Turn every ``grpc.RpcError`` that leaves the block into the core error it stands for."""
    try:
        yield
    except grpc.RpcError as error:
        raise_from_rpc_error(error, doing)


def _explain(code: grpc.StatusCode, details: str) -> str:
    """What grpc's own message means for somebody who did not write grpc."""
    if code is grpc.StatusCode.UNAVAILABLE:
        return f"no broker answers ({details}); check that it runs and the address is right"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no answer in time; the broker may be overloaded, or the deadline too short"
    if code is grpc.StatusCode.CANCELLED:
        return f"the call was cancelled ({details})"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return f"what listens there does not know this request ({details}); is it a Danube broker?"
    return f"{code.name}: {details}"


def _class_for(name: str | None, code: grpc.StatusCode) -> type[DanubeError]:
    # A newer broker may send the name of a class that is not known here: then the code decides.
    return _NAMED.get(name or "") or _CLASS_OF.get(code, DanubeError)


def _code_of(error: grpc.RpcError) -> grpc.StatusCode:
    code = cast(Any, error).code()
    return code if isinstance(code, grpc.StatusCode) else grpc.StatusCode.UNKNOWN


def _trailing(error: grpc.RpcError, key: str) -> str | None:
    for name, value in cast(Any, error).trailing_metadata() or ():
        if name == key:
            return value if isinstance(value, str) else bytes(value).decode("ascii", "replace")
    return None


# --- server side --------------------------------------------------------------------------------

HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])


def guarded(handler: HandlerT) -> HandlerT:
    """Decorate one servicer method, coroutine or async generator: errors become statuses."""
    if inspect.isasyncgenfunction(handler):
        return cast(HandlerT, _guarded_stream(handler))
    if inspect.iscoroutinefunction(handler):
        return cast(HandlerT, _guarded_call(handler))
    raise TypeError(f"{handler!r} is neither a coroutine function nor an async generator function")


def _guarded_call(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(handler)
    async def call(*args: Any) -> Any:
        try:
            return await handler(*args)
        except Exception as error:
            await _abort(args[-1], error, handler)

    return call


def _guarded_stream(
    handler: Callable[..., AsyncIterator[Any]],
) -> Callable[..., AsyncIterator[Any]]:
    @functools.wraps(handler)
    async def stream(*args: Any) -> AsyncIterator[Any]:
        replies = handler(*args)
        try:
            async for reply in replies:
                yield reply
        except Exception as error:
            await _abort(args[-1], error, handler)
        finally:
            # The handler's own clean-up must run with the call, not with the garbage collector.
            await cast(Any, replies).aclose()

    return stream


class GuardInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # not at run time
    """Guard every asynchronous method of every service of a server.

    Pass it to ``grpc.aio.server(interceptors=[GuardInterceptor()])``.
    """

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Replace the method's behaviour by its guarded one."""
        found: Any = await continuation(handler_call_details)
        if found is None:
            return cast("grpc.RpcMethodHandler[Any, Any]", None)  # unknown method: UNIMPLEMENTED
        kind = _KINDS[bool(found.request_streaming), bool(found.response_streaming)]
        behaviour = getattr(found, kind)
        if not (inspect.iscoroutinefunction(behaviour) or inspect.isasyncgenfunction(behaviour)):
            return cast("grpc.RpcMethodHandler[Any, Any]", found)
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return cast(
            "grpc.RpcMethodHandler[Any, Any]",
            make(
                guarded(behaviour),
                request_deserializer=found.request_deserializer,
                response_serializer=found.response_serializer,
            ),
        )


_KINDS: Final = MappingProxyType(
    {
        (False, False): "unary_unary",
        (False, True): "unary_stream",
        (True, False): "stream_unary",
        (True, True): "stream_stream",
    }
)


def sendable(message: str) -> str:
    """As much of a message as fits in status details, where most bytes above ASCII are three."""
    room = MAX_DETAILS_BYTES
    for at, char in enumerate(message[:MAX_DETAILS_BYTES]):
        plain = " " <= char <= "~" and char != "%"
        room -= 1 if plain else 3 * len(char.encode(errors="replace"))
        if room < 0:
            return message[:at]
    return message[:MAX_DETAILS_BYTES]


async def _abort(context: Context, error: Exception, handler: Callable[..., Any]) -> None:
    """End the call with the status that ``error`` stands for. Always raises."""
    if isinstance(error, grpc.aio.AbortError):
        raise error  # the handler has chosen its status itself
    if isinstance(error, DanubeError):
        await context.abort(
            status_of(error),
            sendable(str(error)),
            ((ERROR_METADATA, wire_name(error)),),
        )
    error_id = os.urandom(6).hex()
    method = getattr(handler, "__qualname__", repr(handler))
    log.error("request failed unexpectedly", error_id=error_id, method=method, exc_info=error)
    await context.abort(
        grpc.StatusCode.INTERNAL,
        f"the broker failed to carry out {method}; its log tells why under id {error_id}",
        ((ERROR_METADATA, DanubeError.__name__),),
    )
