"""The client without an event loop: ``danube.blocking.connect("127.0.0.1:6650")``.

The same names as in ``danube``, for scripts, notebooks and threads; one implementation behind both.
"""

from __future__ import annotations

from danube.client.blocking import Admin, Client, Consumer, Producer, Reader, connect

__all__ = ["Admin", "Client", "Consumer", "Producer", "Reader", "connect"]
