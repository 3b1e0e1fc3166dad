//! What is published, read back: as a registry and a proxy's agent would, not as `scripts/package.py` wrote it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use berth_tests_it::{artifact, root};
use flate2::read::GzDecoder;
use serde_json::Value;
use sha2::{Digest, Sha256};

fn sha256(data: &[u8]) -> String {
    Sha256::digest(data).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Packages `dist/` into a new folder of this name.
fn package(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let output = Command::new("python3")
        .arg(root().join("scripts/package.py"))
        .arg(&folder)
        // The lock file decides, not the place.
        .current_dir(env::temp_dir())
        .output()
        .expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder
}

fn json(file: &Path) -> Value {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

/// A blob, if digest and size are what the descriptor says.
fn blob(layout: &Path, descriptor: &Value) -> Vec<u8> {
    let digest = descriptor["digest"]
        .as_str()
        .and_then(|digest| digest.strip_prefix("sha256:"));
    let data = fs::read(layout.join("blobs/sha256").join(digest.expect("a digest"))).unwrap();
    assert_eq!(Some(sha256(&data).as_str()), digest);
    assert_eq!(descriptor["size"], data.len());
    data
}

/// Path -> bytes of all files below a folder.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                found.insert(path.strip_prefix(folder).unwrap().to_owned(), fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// Files of a tar archive: name -> bytes. Only what ustar has.
fn untar(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let text = |field: &[u8]| String::from_utf8(field.iter().copied().take_while(|&byte| byte != 0).collect()).unwrap();
    let mut found = BTreeMap::new();
    let mut rest = archive;
    while let Some((head, after)) = rest.split_at_checked(512).filter(|(head, _)| head[0] != 0) {
        let size = usize::from_str_radix(text(&head[124..136]).trim(), 8).unwrap();
        assert_eq!((head[156], &head[257..262]), (b'0', &b"ustar"[..]), "an ordinary file");
        found.insert(text(&head[..100]), after[..size].to_vec());
        rest = &after[size.next_multiple_of(512)..];
    }
    assert!(
        rest.len() >= 1024 && rest.iter().all(|&byte| byte == 0),
        "an archive ends in zeros"
    );
    found
}

#[test]
fn the_image_has_the_filter_as_istio_and_envoy_gateway_look_for_it() {
    let layout = package("package-read").join("oci");
    assert_eq!(json(&layout.join("oci-layout"))["imageLayoutVersion"], "1.0.0");
    let index = json(&layout.join("index.json"));
    let [top] = index["manifests"].as_array().unwrap().as_slice() else {
        panic!("one image: {index}");
    };
    assert_eq!(top["mediaType"], "application/vnd.oci.image.manifest.v1+json");
    assert_eq!(
        top["annotations"]["org.opencontainers.image.ref.name"],
        env!("CARGO_PKG_VERSION")
    );
    let manifest: Value = serde_json::from_slice(&blob(&layout, top)).unwrap();
    assert_eq!(
        (&manifest["schemaVersion"], &manifest["mediaType"]),
        (&2.into(), &top["mediaType"])
    );
    assert_eq!(manifest["annotations"]["module.wasm.image/variant"], "compat");

    let [layer] = manifest["layers"].as_array().unwrap().as_slice() else {
        panic!("one layer: {manifest}");
    };
    assert_eq!(layer["mediaType"], "application/vnd.oci.image.layer.v1.tar+gzip");
    let mut archive = Vec::new();
    GzDecoder::new(&*blob(&layout, layer))
        .read_to_end(&mut archive)
        .unwrap();
    let inside = untar(&archive);
    assert_eq!(inside.keys().collect::<Vec<_>>(), ["plugin.wasm"]);
    assert!(
        inside["plugin.wasm"] == artifact("berth_filter.wasm"),
        "not the filter of dist/"
    );

    assert_eq!(
        manifest["config"]["mediaType"],
        "application/vnd.oci.image.config.v1+json"
    );
    let config: Value = serde_json::from_slice(&blob(&layout, &manifest["config"])).unwrap();
    assert_eq!(
        config["rootfs"]["diff_ids"],
        serde_json::json!([format!("sha256:{}", sha256(&archive))])
    );
    let blobs = fs::read_dir(layout.join("blobs/sha256")).unwrap().count();
    assert_eq!(blobs, 3, "nothing is left over");
}

#[test]
fn packaging_twice_gives_the_same_bytes_and_the_checksums_are_theirs() {
    let (one, two) = (package("package-one"), package("package-two"));
    let all = files(&one);
    assert!(all == files(&two), "two packages of the same artifacts differ");
    let sums = String::from_utf8(all[Path::new("SHA256SUMS")].clone()).unwrap();
    let mut named = BTreeSet::new();
    for line in sums.lines() {
        let (sum, name) = line.split_once("  ").unwrap();
        let data = if name.ends_with(".wasm") {
            artifact(name)
        } else {
            all[Path::new(name)].clone()
        };
        assert_eq!(sum, sha256(&data), "{name}");
        named.insert(name);
    }
    let expected = [
        "berth.cdx.json",
        "berth_filter.wasm",
        "berth_service.wasm",
        "oci/index.json",
    ];
    assert_eq!(named, BTreeSet::from(expected));
}

#[test]
fn the_list_of_components_is_what_the_wasm_is_built_from() {
    let bom = json(&package("package-bom").join("berth.cdx.json"));
    assert_eq!(
        (&bom["bomFormat"], &bom["specVersion"]),
        (&"CycloneDX".into(), &"1.5".into())
    );
    let components = bom["components"].as_array().unwrap();
    let mut listed = BTreeSet::new();
    for component in components {
        let text = |key: &str| component[key].as_str().unwrap_or_default().to_owned();
        assert_eq!(text("purl"), format!("pkg:cargo/{}@{}", text("name"), text("version")));
        assert!(
            listed.insert(format!("{} v{}", text("name"), text("version"))),
            "{component} twice"
        );
        let ours = text("name").starts_with("berth-");
        let wasm = ["berth-filter", "berth-shared-state-service"].contains(&text("name").as_str());
        assert_eq!(
            component["hashes"][0]["content"].is_string(),
            !ours || wasm,
            "{component}"
        );
        assert!(component["licenses"][0]["expression"].is_string(), "{component}");
    }
    for root in ["berth-filter", "berth-shared-state-service"] {
        for name in crate::dependencies::tree(root) {
            assert!(listed.contains(&name), "{name} is in {root} and not in the list");
        }
    }
    // What only tests and the command need is not in it.
    for absent in ["wasmtime ", "tokio ", "clap ", "proptest "] {
        assert!(!listed.iter().any(|name| name.starts_with(absent)), "{absent}");
    }
    let refs: BTreeSet<&str> = components
        .iter()
        .filter_map(|component| component["bom-ref"].as_str())
        .collect();
    for node in bom["dependencies"].as_array().unwrap() {
        let known = |to: &Value| to.as_str().is_some_and(|to| to == "berth" || refs.contains(to));
        assert!(
            known(&node["ref"]) && node["dependsOn"].as_array().unwrap().iter().all(known),
            "{node}"
        );
    }
}

/// Paths of the machine that built them would differ from machine to machine.
#[test]
fn the_artifacts_carry_no_path_of_this_machine() {
    let home = env::var("HOME").unwrap_or_default();
    let cargo = env::var("CARGO_HOME").unwrap_or_default();
    let here = root().display().to_string();
    for name in ["berth_filter.wasm", "berth_service.wasm"] {
        let wasm = artifact(name);
        for path in [&home, &cargo, &here].into_iter().filter(|path| path.len() > 1) {
            let path = format!("{path}/");
            assert!(
                !wasm.windows(path.len()).any(|part| part == path.as_bytes()),
                "{name} has {path}"
            );
        }
    }
}
