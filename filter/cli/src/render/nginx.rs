//! Configurations for the nginx family, from the templates beside this file: nginx itself, Kong and APISIX.
//!
//! The folder `kong-apisix/` holds what this renders for its configs. Deliberately not here: TLS, authentication and the
//! rest of a gateway, which people have already.

use anyhow::{Context, bail};
use berth_shared_state::config::{Config, Discovery, Host, Pool};
use berth_shared_state::names;
use berth_shared_state::pod::PodAddress;

use super::envoy::FORWARDED;
use super::{NginxArgs, Part, PartArgs, embedded, list, stripped, yaml};

const NGINX: &str = include_str!("nginx.conf");
const KONG: &str = include_str!("kong.yaml");
const KONG_SETTINGS: &str = include_str!("kong.conf");
const APISIX: &str = include_str!("apisix.yaml");
const APISIX_SETTINGS: &str = include_str!("apisix-config.yaml");

/// Shared memory: tables and ledgers are some 10 KB, each at most 1 MiB, and their zone must never be full.
const ZONE: &str = "16m";
/// Longest body that is read. One is in memory for each request that is being read.
const BODY_LIMIT: &str = "8m";
/// Longest body that is accepted at all.
const BODY_MAX: &str = "64m";
/// nginx reads no longer word of its configuration (`NGX_CONF_BUFFER`, 4096), and its quotes need some of it.
const CONFIG_MAX_BYTES: usize = 4000;

/// A complete nginx.conf.
pub fn nginx(config: &Config, document: &[u8], args: &NginxArgs) -> anyhow::Result<String> {
    let quoted = quoted(&hosted(document, Host::Nginx)?);
    if quoted.len() > CONFIG_MAX_BYTES {
        bail!(
            "the config has {} bytes, and nginx reads no word of more than {CONFIG_MAX_BYTES}: leave out what is the default",
            quoted.len()
        );
    }
    let servers = lines(pods(config)?, |pod| format!("        server {pod};"));
    let out = common(NGINX, &args.common.listen.to_string(), args.common.timeout)
        .replace("@PATHS@", &FORWARDED.join("|"))
        .replace("@SERVERS@", &servers)
        .replace("@WASM@", &args.wasm.display().to_string())
        .replace("@CONFIG@", &quoted);
    Ok(out)
}

/// One of Kong's two files.
pub fn kong(config: &Config, document: &[u8], args: &PartArgs) -> anyhow::Result<String> {
    let document = hosted(document, Host::Kong)?;
    let folder = args.wasm.parent().context("--wasm must name a file in a folder")?;
    let (template, listen) = match args.part {
        Part::Settings => (KONG_SETTINGS, args.common.listen.to_string()),
        Part::Routes => (KONG, String::new()),
    };
    let paths = lines(FORWARDED, |path| format!("          - {}", yaml(&format!("~{path}$"))));
    let targets = lines(pods(config)?, |pod| {
        format!("      - target: {}", yaml(&pod.to_string()))
    });
    let out = common(template, &listen, args.common.timeout)
        .replace("@WASM_FOLDER@", &folder.display().to_string())
        .replace("@PATHS@", &paths)
        .replace("@TARGETS@", &targets)
        .replace("@DESTINATION@", names::DESTINATION_ENDPOINT)
        .replace("@CONFIG@", &yaml(&document));
    Ok(out)
}

/// One of APISIX's two files.
pub fn apisix(config: &Config, document: &[u8], args: &PartArgs) -> anyhow::Result<String> {
    let document = hosted(document, Host::Apisix)?;
    let template = match args.part {
        Part::Settings => APISIX_SETTINGS,
        Part::Routes => APISIX,
    };
    let paths = lines(FORWARDED, |path| format!("      - {}", yaml(path)));
    let nodes = lines(pods(config)?, |pod| format!("        {}: 1", yaml(&pod.to_string())));
    let listen = args.common.listen;
    let out = common(template, "", args.common.timeout)
        .replace("@LISTEN_IP@", &listen.ip().to_string())
        .replace("@LISTEN_PORT@", &listen.port().to_string())
        .replace("@WASM@", &yaml(&args.wasm.display().to_string()))
        .replace("@PATHS@", &paths)
        .replace("@NODES@", &nodes)
        .replace("@STRIPPED@", &list(&stripped(config).into_iter().collect()))
        .replace("@DESTINATION@", names::DESTINATION_ENDPOINT)
        .replace("@CONFIG@", &yaml(&document));
    Ok(out)
}

fn common(template: &str, listen: &str, timeout: u32) -> String {
    let template = template
        .replace("@LISTEN@", listen)
        .replace("@ZONE@", ZONE)
        .replace("@BODY_LIMIT@", BODY_LIMIT)
        .replace("@BODY_MAX@", BODY_MAX);
    // Kong counts milliseconds, by the zeros behind.
    let seconds = timeout.to_string();
    if template.contains("@TIMEOUT@;") {
        template.replace("@TIMEOUT@", &format!("{seconds}s"))
    } else {
        template.replace("@TIMEOUT@", &seconds)
    }
}

/// The config with the name of its host in it, in one line.
fn hosted(document: &[u8], host: Host) -> anyhow::Result<String> {
    let (value, _) = embedded(document, host, &[])?;
    Ok(value.to_string())
}

/// The pods of the first pool, which serves what Berth passes.
fn pods(config: &Config) -> anyhow::Result<Vec<PodAddress>> {
    match config.pools.first().map(|pool: &Pool| &pool.discovery) {
        Some(Discovery::Static(pods)) => Ok(pods.clone()),
        _ => bail!(
            "the group that serves what Berth passes is made of discovery.static: name some pods of the first pool there, render, and change its discovery in what is rendered"
        ),
    }
}

fn lines<T>(items: impl IntoIterator<Item = T>, line: impl Fn(T) -> String) -> String {
    let lines: Vec<String> = items.into_iter().map(line).collect();
    lines.join("\n")
}

/// A word of nginx's configuration in quotes. It takes a backslash off what needs none, so each is doubled.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_keep_a_document_whole() {
        #[track_caller]
        fn check(text: &str, expected: &str) {
            assert_eq!(quoted(text), expected);
        }
        check(r#"{"a": 1}"#, r#"'{"a": 1}'"#);
        check(r#"{"a": "it's"}"#, r#"'{"a": "it\'s"}'"#);
        check(r#"{"a": "\""}"#, r#"'{"a": "\\""}'"#);
    }
}
