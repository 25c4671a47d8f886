"""Reads user data as cloud-init does and prints what it makes of each.

Standard input is a JSON list of user data in base64. Standard output is a JSON list of one object for each: `kinds`,
the content types that reach a handler; `ignored`, whether cloud-init warns that nothing handles the data; `config`, the
merged cloud-config, or null if there is none; `error`, what cloud-init logs as a failure.
"""

import base64
import json
import logging
import math
import sys
import tempfile

from cloudinit import handlers, helpers
from cloudinit.handlers.cloud_config import CloudConfigPartHandler
from cloudinit.settings import PER_INSTANCE
from cloudinit.user_data import UserDataProcessor

OTHERS = [
    "text/x-shellscript",
    "text/part-handler",
    "text/cloud-boothook",
    "text/jinja2",
]


class Others(handlers.Handler):
    """Takes parts that would be executed."""

    prefixes = []

    def __init__(self):
        super().__init__(PER_INSTANCE, version=3)

    def handle_part(self, *_):
        pass


class Log(logging.Handler):
    """Keeps warnings and errors."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def plain(value):
    """As JSON can have it. Bytes and dates have no form there."""
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    return {"other": str(value)}


def read(data, log):
    """What cloud-init makes of user data."""
    del log.texts[:]
    folder = tempfile.mkdtemp()
    paths = helpers.Paths({"cloud_dir": folder, "run_dir": folder})
    config = CloudConfigPartHandler(paths)
    others = Others()
    by_type = {kind: others for kind in OTHERS}
    by_type.update({kind: config for kind in config.list_types()})
    kinds = []

    def see(state, filename, payload, headers):
        if headers["Content-Type"] in by_type or headers["Content-Type"] == "text/part-handler":
            kinds.append(headers["Content-Type"])
        if headers["Content-Type"] != "text/part-handler":
            handlers.walker_callback(state, filename, payload, headers)

    state = {
        "handlers": by_type,
        "handlerdir": folder,
        "data": None,
        "frequency": PER_INSTANCE,
        "handlercount": 0,
        "excluded": [],
    }
    error = None
    try:
        message = UserDataProcessor(paths).process(data)
        handlers.walk(message, see, data=state)
    except Exception as failure:  # pylint: disable=broad-except
        error = str(failure)
    ignored = [text for text in log.texts if text.startswith("Unhandled")]
    failed = [text for text in log.texts if text not in ignored and "per instance data" not in text]
    buffer = config.cloud_buf
    return {
        "kinds": kinds,
        "ignored": bool(ignored),
        "config": plain(buffer) if buffer else None,
        "error": error or (failed[0] if failed else None),
    }


def main():
    log = Log()
    root = logging.getLogger()
    root.handlers = [log]
    all_of_them = json.load(sys.stdin)
    json.dump([read(base64.b64decode(one), log) for one in all_of_them], sys.stdout)


main()
