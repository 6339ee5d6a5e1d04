"""onnxruntime-web, which the page computes with: from a folder, the cache, or the npm registry; its files are always checked."""

import base64
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from pathlib import Path

from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.core.files import cache_folder, write_folder

PACKAGE, VERSION = "onnxruntime-web", "1.30.0"
URL = f"https://registry.npmjs.org/{PACKAGE}/-/{PACKAGE}-{VERSION}.tgz"
TARBALL = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
"""SHA-512 of the package as the registry lists it (`npm view onnxruntime-web@1.30.0 dist.integrity`)."""
FILES = {
    "ort.wasm.bundle.min.mjs": "1KcF8CWAZeqtTcvLgKPtOMXIbkWeh++LDCQpDhQ5ARVxHAL1VNL5rr0OI+MxTbmNIANldE/A/q+O4gSKgSMjWQ==",
    "ort-wasm-simd-threaded.wasm": "Gt7e1iIDIZ/PXEhM/OVleqWHVom0kEI/hs8cod0crXcV9jDGM39B23HuQnlOOgDOC3x4k5pxIgtdgzaL9up3MA==",
}
"""What the page needs of it, with each file's SHA-512."""

_SECONDS = 300
_PLACES = (".", "dist", "package/dist", f"{PACKAGE}/dist", f"node_modules/{PACKAGE}/dist")


def runtime_files(given: Path | None = None, *, fetch: bool = True) -> dict[str, bytes]:
    """The files of onnxruntime-web by name.

    Args:
        given: a folder that holds them, or the package (.tgz), instead of the cache.
        fetch: if they are not in the cache, fetch the package and keep them there.

    Raises: ArgumentError: they are not in `given`, or not in the cache and must not be fetched. DataError: they cannot be
        fetched or read, or are not those of this version.
    """
    if given is not None:
        return _unpacked(_read(given)) if given.is_file() else _in_folder(given)
    place = cache_folder() / f"{PACKAGE}-{VERSION}"
    if not _present(place):
        if not fetch:
            rule, advice = f"needs {PACKAGE} {VERSION}", "Fetch it: gatedrnn export RUN --to web --out DIR"
            raise ArgumentError("export --to web", rule, f"none in {place}", advice)
        files = _unpacked(_fetched())
        if not _present(place):  # unless another process was faster
            write_folder(place, lambda folder: [(folder / name).write_bytes(data) for name, data in files.items()])
    return _checked(place)


def _present(folder: Path) -> bool:
    return all((folder / name).is_file() for name in FILES)


def _in_folder(folder: Path) -> dict[str, bytes]:
    place = next((folder / name for name in _PLACES if _present(folder / name)), None)
    if place is None:
        rule = f"must hold {' and '.join(FILES)} of {PACKAGE} {VERSION}"
        got = str(folder) if folder.is_dir() else f"{folder}, which does not exist"
        advice = f"Unpack the package there (npm pack {PACKAGE}@{VERSION}), or give its .tgz"
        raise ArgumentError("export --runtime", rule, got, advice)
    return _checked(place)


def _read(path: Path) -> bytes:
    """Raises: DataError: it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(str(path), "must be a readable file", reason, "Check the path") from error


def _is(data: bytes, sha512: str) -> bool:
    return base64.b64encode(hashlib.sha512(data).digest()).decode() == sha512


def _checked(place: Path) -> dict[str, bytes]:
    """The files in a folder that holds them. Raises: DataError: one cannot be read, or is another one."""
    files = {name: _read(place / name) for name in FILES}
    for name, data in files.items():
        if not _is(data, FILES[name]):
            advice = f"Delete {place} to fetch the files again, or give the package of {VERSION} with --runtime"
            raise DataError(str(place / name), f"must be the file of {PACKAGE} {VERSION}", "another file", advice)
    return files


def _unpacked(package: bytes) -> dict[str, bytes]:
    """Its files. Raises: DataError: it is another package."""
    if not _is(package, TARBALL):
        got, advice = f"{len(package):,} bytes with another SHA-512", f"Download {URL} and give it with --runtime"
        raise DataError("export --runtime", f"must be the package of {PACKAGE} {VERSION}", got, advice)
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        members = {name: archive.extractfile(f"package/dist/{name}") for name in FILES}
        return {name: member.read() for name, member in members.items() if member is not None}


def _fetched() -> bytes:
    """The package, by npm where there is one, since it knows the user's mirror and proxy. Raises: DataError."""
    npm = shutil.which("npm")
    try:
        return _packed(npm) if npm else _downloaded()
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or getattr(error, "reason", None) or str(error)
        got = next((line for line in str(reason).strip().splitlines() if line), type(error).__name__)
        advice = f"Download {URL} elsewhere, and give it with --runtime"
        raise DataError("export --to web", f"must fetch {PACKAGE} {VERSION}", got, advice) from error


def _packed(npm: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", f"{PACKAGE}@{VERSION}", "--loglevel=error", "--pack-destination", folder]
        command += [] if _npm_has_cache() else ["--cache", f"{folder}/cache"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS, cwd=folder)
        return (Path(folder) / f"{PACKAGE}-{VERSION}.tgz").read_bytes()


def _npm_has_cache() -> bool:
    """Whether npm's own cache can be written: where it cannot, every npm command waits for minutes."""
    try:
        cache = Path(os.environ.get("npm_config_cache") or "~/.npm").expanduser()  # noqa: SIM112 - npm's own name
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache):
            return True
    except (OSError, RuntimeError):  # the latter: there is no home
        return False


def _downloaded() -> bytes:
    with urllib.request.urlopen(URL, timeout=_SECONDS) as stream:
        return stream.read()
