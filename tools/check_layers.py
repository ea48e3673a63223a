#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks every #include of kvist/ against tools/layers.txt; prints each arrow that points the wrong way and exits with 1."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def read_law(path):
    allowed, fences = {}, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        left, _, right = line.partition(":")
        folders = right.split()
        for folder in folders:
            if folder not in allowed:
                sys.exit(f"{path.name}:{number}: '{folder}' has no line above this one")
        if left.startswith("<"):
            fences.append((left[1:], folders))
        else:
            allowed[left] = {left, *folders}
    return allowed, fences


def main():
    allowed, fences = read_law(ROOT / "tools" / "layers.txt")
    wrong, seen = [], 0
    for path in sorted((ROOT / "kvist").rglob("*")):
        if path.suffix not in (".h", ".cc"):
            continue
        folder = path.relative_to(ROOT / "kvist").parts[0]
        if folder == path.name:  # kvist/kvist.h is for users and may include all
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
            if not found:
                continue
            seen += 1
            target = found.group(2)
            where = f"{path.relative_to(ROOT)}:{number}"
            if target.startswith("kvist/"):
                other = target.split("/")[1]
                if folder not in allowed:
                    wrong.append(f"{where}: folder '{folder}' has no line in tools/layers.txt")
                elif other not in allowed[folder]:
                    wrong.append(f"{where}: {folder} may not include {other}")
            for prefix, folders in fences:
                if target.startswith(prefix) and folder not in folders:
                    wrong.append(f"{where}: <{prefix}...> belongs to {', '.join(folders)}")
    if seen == 0:
        wrong.append("no #include found: is this the right tree?")
    print("\n".join(wrong) if wrong else f"{seen} includes follow tools/layers.txt")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
