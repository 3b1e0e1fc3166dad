"""Makes dist/ ready to be published: `package.py FOLDER`. Python's own library alone; the same input gives the same bytes.

    FOLDER/oci/            OCI image layout: one image, one layer, in it plugin.wasm = berth_filter.wasm
    FOLDER/berth.cdx.json  what the wasm is made of (CycloneDX 1.5), from Cargo.lock by `cargo metadata`
    FOLDER/SHA256SUMS      of these, and of the wasm

The image is the "compat" variant of the Wasm image specification (solo-io/wasm), which Istio's agent and Envoy Gateway
fetch. Its gzip is written without compression: every compressor, and every version of one, gives other bytes.
"""

import hashlib
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import zlib

TARGET = "wasm32-wasip1"
ROOTS = {"berth-filter": "berth_filter.wasm", "berth-shared-state-service": "berth_service.wasm"}
STORED_MAX = 0xFFFF


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def to_json(value):
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def gzip(data):
    """RFC 1952 and 1951: no name, no time, stored blocks."""
    out = bytearray(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff")
    starts = range(0, max(len(data), 1), STORED_MAX)
    for start in starts:
        block = data[start : start + STORED_MAX]
        last = start == starts[-1]
        out += struct.pack("<BHH", last, len(block), len(block) ^ 0xFFFF) + block
    return bytes(out + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF))


def tar(name, data):
    """One file, owned by root, of the beginning of time."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def image(folder, wasm, version):
    """Writes the layout. Returns the manifest's digest."""
    blobs = os.path.join(folder, "blobs", "sha256")
    os.makedirs(blobs)

    def blob(kind, data, **more):
        with open(os.path.join(blobs, sha256(data)), "wb") as file:
            file.write(data)
        return {"mediaType": kind, "digest": "sha256:" + sha256(data), "size": len(data), **more}

    archive = tar("plugin.wasm", wasm)
    layer = blob("application/vnd.oci.image.layer.v1.tar+gzip", gzip(archive))
    config = {
        "architecture": "wasm",
        "os": "wasip1",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + sha256(archive)]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob("application/vnd.oci.image.config.v1+json", to_json(config)),
        "layers": [layer],
        "annotations": {
            "module.wasm.image/variant": "compat",
            "org.opencontainers.image.title": "berth",
            "org.opencontainers.image.description": "Routes LLM requests by KV-cache room and LoRA residency (Proxy-Wasm)",
            "org.opencontainers.image.licenses": "Apache-2.0",
            "org.opencontainers.image.version": version,
        },
    }
    name = {"org.opencontainers.image.ref.name": version}
    top = blob(manifest["mediaType"], to_json(manifest), annotations=name)
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [top]}
    for file, value in (("oci-layout", {"imageLayoutVersion": "1.0.0"}), ("index.json", index)):
        with open(os.path.join(folder, file), "wb") as out:
            out.write(to_json(value))
    return top["digest"]


def checksums(lock):
    """(name, version) -> sha256 of the crate, as Cargo.lock has it."""
    found = {}
    for package in lock.split("[[package]]")[1:]:
        keys = dict(line.split(" = ", 1) for line in package.splitlines() if " = " in line)
        if "checksum" in keys:
            found[keys["name"].strip('"'), keys["version"].strip('"')] = keys["checksum"].strip('"')
    return found


def sbom(metadata, lock, wasm):
    """What is compiled in, or runs at build time: normal and build dependencies, from the roots down."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    roots = {id for id, package in packages.items() if package["name"] in ROOTS}
    used, waiting = {}, sorted(roots)
    while waiting:
        id = waiting.pop()
        if id not in used:
            kinds = lambda dep: any(kind["kind"] != "dev" for kind in dep["dep_kinds"])
            used[id] = sorted(dep["pkg"] for dep in nodes[id]["deps"] if kinds(dep))
            waiting += used[id]
    hashes = checksums(lock)
    ref = lambda id: f"pkg:cargo/{packages[id]['name']}@{packages[id]['version']}"

    def component(id):
        package = packages[id]
        found = {
            "type": "application" if id in roots else "library",
            "bom-ref": ref(id),
            "name": package["name"],
            "version": package["version"],
            "purl": ref(id),
            "licenses": [{"expression": package["license"].replace("/", " OR ")}],
        }
        known = hashes.get((package["name"], package["version"]))
        if package["name"] in ROOTS:
            known = sha256(wasm[ROOTS[package["name"]]])
        if known:
            found["hashes"] = [{"alg": "SHA-256", "content": known}]
        return found

    version = packages[min(roots)]["version"]
    top = {"type": "application", "bom-ref": "berth", "name": "berth", "version": version}
    depends = [{"ref": "berth", "dependsOn": sorted(map(ref, roots))}]
    depends += [{"ref": ref(id), "dependsOn": sorted(map(ref, deps))} for id, deps in used.items()]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": top},
        "components": sorted(map(component, used), key=lambda found: found["bom-ref"]),
        "dependencies": sorted(depends, key=lambda found: found["ref"]),
    }


def main(folder):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    wasm = {}
    for name in ROOTS.values():
        with open(os.path.join(root, "dist", name), "rb") as file:
            wasm[name] = file.read()
    with open(os.path.join(root, "Cargo.lock")) as file:
        lock = file.read()
    asked = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", TARGET]
    metadata = json.loads(subprocess.run(asked, cwd=root, check=True, stdout=subprocess.PIPE).stdout)
    version = next(package["version"] for package in metadata["packages"] if package["name"] == "berth-filter")

    layout = os.path.join(folder, "oci")
    shutil.rmtree(layout, ignore_errors=True)
    digest = image(layout, wasm["berth_filter.wasm"], version)
    files = {**wasm, "berth.cdx.json": to_json(sbom(metadata, lock, wasm))}
    with open(os.path.join(folder, "berth.cdx.json"), "wb") as file:
        file.write(files["berth.cdx.json"])
    with open(os.path.join(layout, "index.json"), "rb") as file:
        files["oci/index.json"] = file.read()
    with open(os.path.join(folder, "SHA256SUMS"), "w") as file:
        file.writelines(f"{sha256(data)}  {name}\n" for name, data in sorted(files.items()))
    print(f"{layout}:{version} {digest}")


main(*sys.argv[1:])
