//! `berth read`: what Berth sees in one /metrics page.
//!
//! The reader is the poller's own. Only gunzip is added, for pages saved as they were sent; the
//! poller asks for identity instead.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use berth_shared_state::limits::PAGE_MAX_BYTES;
use berth_shared_state::metrics::{self, Hints};
use berth_shared_state::models;
use berth_shared_state::sample::{Activity, Engine, Level, Sample, Status};
use berth_shared_state::units::UnixMillis;

use crate::document;

/// Arguments of `berth read`.
#[derive(clap::Args)]
pub struct Args {
    /// The page, as text or gzip; `-` is stdin.
    file: PathBuf,
    /// The pod's /v1/models: its names resolve commas inside adapter names.
    #[arg(long, value_name = "FILE")]
    models: Option<PathBuf>,
    /// The engine, if the page could be of several: vllm, sglang, trtllm, triton, lmdeploy,
    /// llama-cpp, tgi, max, nim.
    #[arg(long, value_name = "NAME", value_parser = engine)]
    engine: Option<Engine>,
    /// When the page was taken: repairs LoRA clocks that several API servers summed. Without it the
    /// largest clock wins.
    #[arg(long, value_name = "UNIX_SECONDS", value_parser = time)]
    now: Option<UnixMillis>,
}

/// Runs it; the exit code is the answer.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let page = gunzip(bytes(&args.file)?).with_context(|| format!("cannot unpack {}", args.file.display()))?;
    let known = match &args.models {
        Some(file) => names(&bytes(file)?).with_context(|| file.display().to_string())?,
        None => Vec::new(),
    };
    let hints = Hints {
        engine: args.engine,
        known_adapters: &known,
        now: args.now.unwrap_or_default(),
    };
    writeln!(std::io::stdout(), "{}", answer(&page, hints)?)?;
    Ok(ExitCode::SUCCESS)
}

/// What is printed. The keys are a contract; null is unknown.
#[derive(serde::Serialize)]
struct Answer {
    engine: Option<Engine>,
    status: Status,
    reason: Option<&'static str>,
    running: Option<u32>,
    waiting: Option<u32>,
    kv_mean: Option<f64>,
    kv_max: Option<f64>,
    kv_capacity_tokens: Option<u64>,
    adapters: Option<Adapters>,
}

#[derive(serde::Serialize)]
struct Adapters {
    running: Option<Vec<String>>,
    waiting: Option<Vec<String>>,
    max: Option<u32>,
    /// Where each adapter's weights are.
    resident: Option<BTreeMap<String, Level>>,
}

fn answer(page: &[u8], hints: Hints<'_>) -> serde_json::Result<String> {
    let sample = metrics::read(page, hints);
    serde_json::to_string_pretty(&Answer {
        engine: sample.engine,
        status: sample.status,
        reason: sample.reason,
        running: sample.running,
        waiting: sample.waiting,
        kv_mean: sample.kv_mean,
        kv_max: sample.kv_max,
        kv_capacity_tokens: sample.kv_capacity.map(|tokens| tokens.0),
        adapters: adapters(sample),
    })
}

fn adapters(sample: Sample) -> Option<Adapters> {
    if sample.activity.is_none() && sample.resident.is_none() {
        return None;
    }
    let (running, waiting, max) = match sample.activity {
        Some(Activity { running, waiting, max }) => (Some(running), Some(waiting), max),
        None => (None, None, None),
    };
    Some(Adapters {
        running,
        waiting,
        max,
        resident: sample.resident.map(BTreeMap::from_iter),
    })
}

fn names(page: &[u8]) -> anyhow::Result<Vec<String>> {
    match models::read(page) {
        Ok(models) => Ok(models.into_iter().map(|model| model.id).collect()),
        Err(error) => anyhow::bail!("{error}"),
    }
}

/// As much of a file as a page may have, and a byte more.
fn bytes(file: &Path) -> anyhow::Result<Vec<u8>> {
    document::input(file, PAGE_MAX_BYTES)
}

fn gunzip(bytes: Vec<u8>) -> std::io::Result<Vec<u8>> {
    if bytes.starts_with(&[0x1f, 0x8b]) {
        document::capped(flate2::read::MultiGzDecoder::new(bytes.as_slice()), PAGE_MAX_BYTES)
    } else {
        Ok(bytes)
    }
}

fn engine(name: &str) -> Result<Engine, String> {
    serde_json::from_value(name.into())
        .map_err(|_| "not an engine: vllm, sglang, trtllm, triton, lmdeploy, llama-cpp, tgi, max or nim".to_owned())
}

fn time(seconds: &str) -> Result<UnixMillis, String> {
    let seconds: f64 = seconds.parse().map_err(|_| "not a number of seconds".to_owned())?;
    // The last f64 that a millisecond still changes is far beyond any clock.
    if (0.0..=1e12).contains(&seconds) {
        Ok(UnixMillis((seconds * 1000.0) as u64))
    } else {
        Err("seconds since 1970, for example 1796023243.6".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUST_FRONTEND: &[u8] = include_bytes!("../../../tests/fixtures/metrics/11-vllm-rust-frontend-busy.txt");
    const HARD_NAMES: &[u8] = include_bytes!("../../../tests/fixtures/metrics/16-vllm-lora-hard-names.txt");
    const HARD_MODELS: &[u8] = include_bytes!("../../../tests/fixtures/metrics/16-vllm-lora-hard-names.models.json");

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn the_answer_has_exactly_the_documented_keys_in_order() {
        let text = answer(RUST_FRONTEND, Hints::default()).unwrap();
        let wanted = r#"{
  "engine": "vllm",
  "status": "ok",
  "reason": null,
  "running": 3,
  "waiting": 2,
  "kv_mean": 0.75,
  "kv_max": 0.75,
  "kv_capacity_tokens": null,
  "adapters": {
    "running": [
      "a",
      "b"
    ],
    "waiting": [
      "c"
    ],
    "max": null,
    "resident": {
      "a": "gpu",
      "b": "gpu",
      "d": "cpu"
    }
  }
}"#;
        assert_eq!(text, wanted);
    }

    #[test]
    fn what_is_not_known_is_null() {
        let text = answer(b"[]", Hints::default()).unwrap();
        let wanted = r#"{
  "engine": null,
  "status": "unknown",
  "reason": "JSON, not metrics text: is the path right?",
  "running": null,
  "waiting": null,
  "kv_mean": null,
  "kv_max": null,
  "kv_capacity_tokens": null,
  "adapters": null
}"#;
        assert_eq!(text, wanted);
    }

    #[test]
    fn the_models_page_resolves_a_comma_in_a_name() {
        let known = names(HARD_MODELS).unwrap();
        let text = answer(
            HARD_NAMES,
            Hints {
                known_adapters: &known,
                ..Hints::default()
            },
        )
        .unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["adapters"]["running"][1], "comma,name");
        assert_eq!(value["adapters"]["resident"], serde_json::Value::Null);
    }

    #[test]
    fn a_models_page_that_is_none_is_an_error() {
        let error = names(b"[]").unwrap_err().to_string();
        assert_eq!(error, "not an OpenAI model list (object with a `data` array)");
    }

    #[test]
    fn gzip_is_unpacked_up_to_the_size_of_a_page() {
        assert_eq!(gunzip(gzip(RUST_FRONTEND)).unwrap(), RUST_FRONTEND);
        assert_eq!(gunzip(RUST_FRONTEND.to_vec()).unwrap(), RUST_FRONTEND);
        let bomb = |bytes: usize| gunzip(gzip(&vec![b'\n'; bytes])).unwrap().len();
        assert_eq!(bomb(PAGE_MAX_BYTES), PAGE_MAX_BYTES);
        assert_eq!(bomb(PAGE_MAX_BYTES + 2), PAGE_MAX_BYTES + 1);
        let cut = gzip(RUST_FRONTEND);
        assert!(gunzip(cut[..cut.len() - 9].to_vec()).is_err());
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = bytes(Path::new("no/such/page.txt")).unwrap_err();
        assert!(
            format!("{error:#}").starts_with("cannot read no/such/page.txt: "),
            "{error:#}"
        );
    }

    #[test]
    fn engine_and_time_are_checked() {
        assert_eq!(engine("llama-cpp"), Ok(Engine::LlamaCpp));
        assert!(engine("llamacpp2").is_err());
        assert_eq!(time("1796023243.5"), Ok(UnixMillis(1_796_023_243_500)));
        for bad in ["", "-1", "NaN", "inf", "1e13", "x"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }
}
