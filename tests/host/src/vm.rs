//! One VM: a wasmtime store with its contexts, and the way into the guest.
//!
//! Nothing here decides what a callback's answer means; that is `stream` and `host`.

use crate::abi::{Headers, LogLevel};
use crate::callouts::Response;
use crate::clock::VmUid;
use crate::dialect::Dialect;
use crate::engine;
use crate::host::{Plugin, Thread};
use crate::metrics::MetricIds;
use crate::process::{LogLine, Process};
use crate::stream::{Direction, StreamRef};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use wasmtime::{Instance, Linker, Memory, Module, Store, StoreLimits, StoreLimitsBuilder};
use wasmtime::{TypedFunc, Val};

/// Largest linear memory (`limits.h` of proxy-wasm-cpp-host), in bytes.
const MEMORY_LIMIT: usize = 1 << 30;

/// Something a host call asked for that must wait until the guest has returned.
pub(crate) enum Action {
    Resume(StreamRef, Direction),
    Reply(StreamRef, LocalReply),
    Reset(StreamRef),
}

/// `proxy_send_local_response`, or a reply that Envoy itself makes.
#[derive(Clone, Debug)]
pub(crate) struct LocalReply {
    pub(crate) status: u32,
    pub(crate) headers: Headers,
    pub(crate) body: Vec<u8>,
    pub(crate) details: String,
}

#[derive(Clone)]
pub(crate) enum Context {
    Root(Rc<Plugin>),
    Stream(StreamRef),
}

/// What makes two plugins share a VM on a thread (`makeVmKey`).
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct VmKey {
    pub(crate) thread: Thread,
    pub(crate) code: u64,
    pub(crate) vm_id: String,
    pub(crate) vm_configuration: Vec<u8>,
    pub(crate) env: Vec<(String, String)>,
}

/// The part of a VM that host calls reach.
pub(crate) struct VmState {
    pub(crate) uid: VmUid,
    pub(crate) dialect: Dialect,
    /// Which instance of the VM this is (WasmX makes a new one in the place of one that trapped).
    pub(crate) instance: u32,
    pub(crate) key: VmKey,
    pub(crate) process: Rc<RefCell<Process>>,
    pub(crate) contexts: HashMap<u32, Context>,
    last_context: u32,
    /// Context of the running callback; 0 while the module initialises.
    pub(crate) current: u32,
    /// The running callback.
    pub(crate) export: &'static str,
    /// Roots whose tick is set, where it can be set once.
    pub(crate) ticking: HashSet<u32>,
    /// `proxy_set_effective_context`; 0 = none. Back to 0 at each callback.
    pub(crate) effective: u32,
    /// A local reply was asked for in this callback, so it ends in Stop whatever the guest returns.
    pub(crate) stop_iteration: bool,
    /// `_initialize` is running: only a few host calls are open.
    pub(crate) starting: bool,
    /// Plugin configuration, readable only while the plugin is configured.
    pub(crate) configuration: Option<Rc<Plugin>>,
    /// Context and response of the callout being delivered.
    pub(crate) callout: Option<(u32, Response)>,
    /// How it ended, where WasmX says it.
    pub(crate) dispatch_status: &'static str,
    pub(crate) actions: VecDeque<Action>,
    pub(crate) metric_ids: MetricIds,
    pub(crate) last_token: u32,
    pub(crate) memory: Option<Memory>,
    pub(crate) malloc: Option<TypedFunc<u32, u32>>,
    owner: String,
    limits: StoreLimits,
}

impl VmState {
    pub(crate) fn allocate_context(&mut self, context: Context) -> u32 {
        self.last_context += 1;
        self.contexts.insert(self.last_context, context);
        self.last_context
    }

    /// The context that host calls act on.
    pub(crate) fn acting(&self) -> u32 {
        match self.effective {
            id if self.contexts.contains_key(&id) => id,
            _ => self.current,
        }
    }

    /// The stream that host calls act on.
    pub(crate) fn stream(&self) -> Option<StreamRef> {
        match self.contexts.get(&self.acting())? {
            Context::Stream(stream) => Some(stream.clone()),
            Context::Root(_) => None,
        }
    }

    /// Whether the answer to a call of this context is for the acting one.
    pub(crate) fn hears(&self, context: u32) -> bool {
        context == self.acting() || (self.dialect == Dialect::Envoy && context == self.root())
    }

    /// Root context of the acting context.
    pub(crate) fn root(&self) -> u32 {
        match self.stream() {
            Some(stream) => stream.borrow().root,
            None => self.acting(),
        }
    }

    pub(crate) fn plugin(&self) -> Option<Rc<Plugin>> {
        match self.contexts.get(&self.root())? {
            Context::Root(plugin) => Some(plugin.clone()),
            Context::Stream(_) => None,
        }
    }

    /// The guest did what the real host would not survive.
    pub(crate) fn fault(&self, why: &str) {
        let text = format!("{} in {}", why, self.export);
        self.log(LogLevel::Critical, &text, true);
        self.process.borrow_mut().faults.push(text);
    }

    pub(crate) fn log(&self, level: LogLevel, text: &str, from_host: bool) {
        let plugin = self
            .plugin()
            .map_or_else(|| self.owner.clone(), |plugin| plugin.name.clone());
        let mut process = self.process.borrow_mut();
        let at = process.clock.now();
        process.log.push(LogLine {
            at,
            thread: self.key.thread,
            plugin,
            level,
            text: text.to_owned(),
            from_host,
        });
    }
}

/// How a callback ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Called {
    /// The module does not export it.
    Missing,
    /// Its value (0 if it has none), and whether a local reply forces Stop.
    Returned { value: u32, stop: bool },
    /// It trapped, or the VM was dead before.
    Failed,
}

pub(crate) struct Vm {
    store: Store<VmState>,
    instance: Instance,
    pub(crate) failed: bool,
    fuel_used: u64,
}

impl Vm {
    /// Instantiates the module and runs `_initialize`.
    pub(crate) fn new(
        module: &Module,
        linker: &Linker<VmState>,
        uid: VmUid,
        key: VmKey,
        process: &Rc<RefCell<Process>>,
        owner: &str,
        dialect: Dialect,
    ) -> anyhow::Result<Self> {
        engine::check_exports(module)?;
        let state = VmState {
            uid,
            dialect,
            instance: 0,
            key,
            process: process.clone(),
            contexts: HashMap::new(),
            last_context: 0,
            current: 0,
            export: "_initialize",
            ticking: HashSet::new(),
            effective: 0,
            stop_iteration: false,
            starting: false,
            configuration: None,
            callout: None,
            dispatch_status: "",
            actions: VecDeque::new(),
            metric_ids: MetricIds::default(),
            last_token: 0,
            memory: None,
            malloc: None,
            owner: owner.to_owned(),
            limits: StoreLimitsBuilder::new().memory_size(MEMORY_LIMIT).build(),
        };
        let mut store = Store::new(engine::engine(), state);
        store.limiter(|state| &mut state.limits);
        let fault = |error: wasmtime::Error| anyhow::anyhow!("{error:?}");
        let fuel = process.borrow().fuel_per_callback;
        store.set_fuel(fuel).map_err(fault)?;
        refuse_unknown_imports(module, linker, &mut store)?;
        let instance = linker.instantiate(&mut store, module).map_err(fault)?;
        let memory = instance.get_memory(&mut store, "memory");
        let malloc = ["malloc", "proxy_on_memory_allocate"]
            .iter()
            .find_map(|name| instance.get_typed_func(&mut store, name).ok());
        store.data_mut().memory = memory;
        store.data_mut().malloc = malloc;
        let mut vm = Self {
            store,
            instance,
            failed: false,
            fuel_used: 0,
        };
        vm.store.data_mut().starting = true;
        vm.call(0, "_initialize", &[]);
        vm.store.data_mut().starting = false;
        Ok(vm)
    }

    pub(crate) fn state(&self) -> &VmState {
        self.store.data()
    }

    pub(crate) fn state_mut(&mut self) -> &mut VmState {
        self.store.data_mut()
    }

    /// Instructions executed so far, as wasmtime counts fuel.
    pub(crate) fn fuel_used(&self) -> u64 {
        self.fuel_used
    }

    pub(crate) fn memory_size(&self) -> usize {
        let memory = self.store.data().memory;
        memory.map_or(0, |memory| memory.data_size(&self.store))
    }

    /// Runs one export in a context. Deferred actions stay in the state for the caller to run.
    pub(crate) fn call(&mut self, context: u32, export: &'static str, args: &[u32]) -> Called {
        if self.failed {
            return Called::Failed;
        }
        let Some(function) = self.instance.get_func(&mut self.store, export) else {
            return Called::Missing;
        };
        let state = self.store.data_mut();
        state.current = context;
        state.export = export;
        state.effective = 0;
        state.stop_iteration = false;
        let args: Vec<Val> = args.iter().map(|arg| Val::I32(*arg as i32)).collect();
        let returns = function.ty(&self.store).results().len();
        let mut results = vec![Val::I32(0); returns];
        let fuel = self.state().process.borrow().fuel_per_callback;
        let done = self
            .store
            .set_fuel(fuel)
            .and_then(|()| function.call(&mut self.store, &args, &mut results));
        self.fuel_used += fuel - self.store.get_fuel().unwrap_or(0);
        if let Err(error) = done {
            self.fail(&format!("Function: {export} failed: {error:?}"));
            // Nothing makes this one's instance anew, or keeps calls from it.
            self.failed = self.state().dialect != Dialect::Apisix;
            return Called::Failed;
        }
        let value = results.first().and_then(Val::i32).unwrap_or(0) as u32;
        let stop = std::mem::take(&mut self.store.data_mut().stop_iteration);
        Called::Returned { value, stop }
    }

    /// Marks the VM as dead and says why in the log.
    pub(crate) fn fail(&mut self, why: &str) {
        self.failed = true;
        self.state().log(LogLevel::Error, why, true);
    }
}

fn refuse_unknown_imports(module: &Module, linker: &Linker<VmState>, store: &mut Store<VmState>) -> anyhow::Result<()> {
    let unknown: Vec<String> = module
        .imports()
        .filter(|import| linker.get(&mut *store, import.module(), import.name()).is_err())
        .map(|import| format!("{}.{}", import.module(), import.name()))
        .collect();
    if unknown.is_empty() {
        return Ok(());
    }
    anyhow::bail!(
        "the module imports what this host does not have: {}",
        unknown.join(", ")
    )
}
