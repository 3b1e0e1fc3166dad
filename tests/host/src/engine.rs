//! One wasmtime engine and one compilation of each module per process; every VM is an instance of its own.
//!
//! Fuel is always on: it makes instruction counts exact and repeatable, and it ends a callback that never returns.

use anyhow::{Context as _, bail};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Mutex, OnceLock};
use wasmtime::{Config, Engine, Module, OptLevel};

/// The export by which Envoy recognises the ABI.
const ABI_MARK: &str = "proxy_abi_version_0_2_1";

/// A compiled module and what identifies its code.
#[derive(Clone)]
pub(crate) struct Code {
    pub(crate) module: Module,
    pub(crate) hash: u64,
}

struct Compiler {
    engine: Engine,
    modules: Mutex<HashMap<u64, Module>>,
}

fn compiler() -> &'static Compiler {
    static COMPILER: OnceLock<Compiler> = OnceLock::new();
    COMPILER.get_or_init(|| {
        let mut config = Config::new();
        config.consume_fuel(true);
        config.cranelift_opt_level(OptLevel::Speed);
        Compiler {
            engine: Engine::new(&config).expect("a wasmtime engine"),
            modules: Mutex::default(),
        }
    })
}

pub(crate) fn engine() -> &'static Engine {
    &compiler().engine
}

/// Compiles `wasm`, or returns what an earlier call compiled.
pub(crate) fn compile(wasm: &[u8]) -> anyhow::Result<Code> {
    let mut hasher = DefaultHasher::new();
    wasm.hash(&mut hasher);
    let hash = hasher.finish();
    // The lock is held while compiling, so that tests which start together compile once.
    let mut modules = compiler()
        .modules
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(module) = modules.get(&hash) {
        let module = module.clone();
        return Ok(Code { module, hash });
    }
    let module = Module::new(engine(), wasm)
        .map_err(|error| anyhow::anyhow!("{error:?}"))
        .context("not a valid wasm module")?;
    modules.insert(hash, module.clone());
    Ok(Code { module, hash })
}

/// Fails unless the module says that it speaks ABI 0.2.1 and lets the host allocate.
pub(crate) fn check_exports(module: &Module) -> anyhow::Result<()> {
    if module.get_export(ABI_MARK).is_none() {
        bail!("the module does not export {ABI_MARK}");
    }
    let allocates = ["malloc", "proxy_on_memory_allocate"]
        .iter()
        .any(|name| module.get_export(name).is_some());
    if !allocates {
        bail!("the module exports neither malloc nor proxy_on_memory_allocate");
    }
    Ok(())
}

/// What a module imports, as sorted `module.name`.
pub fn imports(wasm: &[u8]) -> anyhow::Result<Vec<String>> {
    let code = compile(wasm)?;
    let mut names: Vec<String> = code
        .module
        .imports()
        .map(|import| format!("{}.{}", import.module(), import.name()))
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}
