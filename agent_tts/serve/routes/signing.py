"""Signs files in a process of low priority: `python -m agent_tts.serve.routes.signing PID FORMAT`.

On its stdin: the lengths of the certificate and of the key, these two, and the file. On stdout: the file with its
manifest. C2PA's library holds the interpreter and several copies of a file, and a front has callers. It ends with its
parent, PID.
"""

from __future__ import annotations

import os
import struct
import sys

from loguru import logger

from agent_tts.errors import RETRY_MS, AtCapacity, Internal
from agent_tts.speech.audio.manifest import ManifestSigner, signed
from agent_tts.system.in_child import die_with, take_stdout
from agent_tts.system.processes import run_module

MORE_BYTES = 1 << 20  # that a manifest may add; it has 3 KB with short certificates
SIGN_S = 30.0  # longest time; a second on an idle machine
NICE = 10

_HEAD = struct.Struct("!II")


async def sign(signer: ManifestSigner, format: str, file: bytes) -> bytes:
    """A complete file of a signable format with a manifest. Cancelling it is safe.

    Raises:
        Internal: it cannot be signed, for example because the certificate has expired, or in time.
        AtCapacity: the machine cannot start a process.
    """
    head = _HEAD.pack(len(signer.certificate), len(signer.key)) + signer.certificate + signer.key
    args, most = (str(os.getpid()), format), len(file) + MORE_BYTES
    try:
        done = await run_module(__name__, *args, data=head + file, output_bytes=most, timeout_s=SIGN_S)
    except TimeoutError:
        raise Internal(f"signing the file took more than {SIGN_S:g} s") from None
    except OSError as error:
        logger.error("no process can be started to sign a file: {}", error.strerror)
        raise AtCapacity(
            "the node cannot start a process to sign the file: try again", retry_after_ms=RETRY_MS
        ) from None
    if done.code != 0:
        logger.error("a file cannot be signed: {}", done.errors.rpartition("\n")[2])
        raise Internal("the file cannot be signed; the reason is in the node's log")
    return done.output


def main() -> None:
    """Run the process."""
    die_with(int(sys.argv[1]))
    os.nice(NICE)
    out = take_stdout()
    given = sys.stdin.buffer
    certificate_bytes, key_bytes = _HEAD.unpack(given.read(_HEAD.size))
    certificate, key = given.read(certificate_bytes), given.read(key_bytes)
    with open(out, "wb") as stdout:
        stdout.write(signed(given.read(), sys.argv[2], certificate, key))


if __name__ == "__main__":
    main()
