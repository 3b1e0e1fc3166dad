//! The proxy process: its threads, the plugins on them, the life of their VMs, and time.
//!
//! One thread of execution runs everything; "threads" are Envoy's, as places where a VM lives. A plugin is added as Envoy
//! adds it: a canary on the main thread first, then the main thread's own VM, then one per worker.

use crate::clock::{Event, VmUid};
use crate::dialect::Dialect;
use crate::engine::{self, Code};
use crate::hostcalls;
use crate::process::Process;
use crate::shared_data::CasRules;
use crate::stream::{Membership, Stream, StreamRef};
use crate::vm::{Called, Context, Vm, VmKey, VmState};
use anyhow::{Context as _, bail};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use wasmtime::Linker;

mod view;

/// A place where VMs live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Thread {
    /// The trial run of a plugin before it is taken; it is dropped at once.
    Canary,
    Main,
    Worker(usize),
}

/// What the proxy does once a plugin's VM has died.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// 503 until the configuration changes. Envoy's default.
    #[default]
    Closed,
    /// New requests go past the filter; streams that were in it get 503.
    Open,
    /// The next request on that worker makes a new VM, at most once per backoff.
    Reload,
    /// The old `fail_open`: everything goes past the filter.
    LegacyOpen,
}

/// `PluginConfig` with its `VmConfig`.
#[derive(Clone, Debug)]
pub struct Plugin {
    pub name: String,
    pub root_id: String,
    pub vm_id: String,
    pub configuration: Vec<u8>,
    pub vm_configuration: Vec<u8>,
    pub env: Vec<(String, String)>,
    /// Variables that the configuration of an nginx makes with `set`, all of them empty: a filter may write these.
    pub variables: Vec<String>,
    /// With it, Pause in a headers callback lets body callbacks go on.
    pub allow_on_headers_stop_iteration: bool,
    pub failure_policy: FailurePolicy,
    /// Least time between two loads of a VM. Envoy adds jitter; here it is exact.
    pub reload_backoff: Duration,
}

impl Plugin {
    /// A plugin with Envoy's defaults.
    pub fn new(name: &str, configuration: impl Into<Vec<u8>>) -> Self {
        Self {
            name: name.to_owned(),
            root_id: String::new(),
            vm_id: String::new(),
            configuration: configuration.into(),
            vm_configuration: Vec::new(),
            env: Vec::new(),
            variables: Vec::new(),
            allow_on_headers_stop_iteration: false,
            failure_policy: FailurePolicy::default(),
            reload_backoff: Duration::from_secs(1),
        }
    }
}

/// What a process starts with.
#[derive(Clone, Debug)]
pub struct Settings {
    pub workers: usize,
    /// Unix time at the start.
    pub start: Duration,
    /// Seed of `random_get`.
    pub seed: u64,
    /// Stream buffer limit, bytes. Envoy: 1 MiB; Istio's EDGE profile: 32 KiB. Under [`Dialect::WasmX`] it is
    /// `client_body_buffer_size`: a longer body cannot be read.
    pub buffer_limit: usize,
    /// The proxy that is imitated.
    pub dialect: Dialect,
    pub cas_rules: CasRules,
    /// Largest value that shared data takes under [`Dialect::WasmX`], where all of it is in one zone; bytes.
    pub zone: usize,
    /// WASI's clocks are there; Envoy's and WasmX's always are.
    pub wasi_clock: bool,
    /// Properties can be read; Envoy's capability restrictions may leave that out.
    pub properties: bool,
    /// Instructions one callback may take before it counts as an endless loop. Envoy has no such limit; a test must end.
    pub fuel_per_callback: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            workers: 2,
            start: Duration::from_secs(1_700_000_000),
            seed: 1,
            buffer_limit: 1024 * 1024,
            dialect: Dialect::Envoy,
            cas_rules: CasRules::Envoy,
            zone: 16 * 1024 * 1024,
            wasi_clock: true,
            properties: true,
            fuel_per_callback: 20_000_000_000,
        }
    }
}

impl Settings {
    /// The defaults of a proxy.
    pub fn of(dialect: Dialect) -> Self {
        let cas_rules = match dialect {
            Dialect::WasmX => CasRules::WasmX,
            Dialect::Envoy | Dialect::Apisix => CasRules::Envoy,
        };
        Self {
            dialect,
            cas_rules,
            ..Self::default()
        }
    }
}

/// Names a plugin that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PluginId(usize);

/// Where a plugin's root context lives on one thread.
#[derive(Clone, Copy)]
struct Placement {
    vm: VmUid,
    root: u32,
    loaded: Duration,
}

struct Deployed {
    plugin: Rc<Plugin>,
    code: Code,
    on: BTreeMap<Thread, Placement>,
}

/// Whether a module's imports are there under a dialect, each with the types that it is imported with.
///
/// # Errors
/// Those that are not.
pub fn loads(wasm: &[u8], dialect: Dialect) -> anyhow::Result<()> {
    let code = engine::compile(wasm)?;
    let linker = hostcalls::linker(dialect).map_err(|error| anyhow::anyhow!("{error:?}"))?;
    linker
        .instantiate_pre(&code.module)
        .map(drop)
        .map_err(|error| anyhow::anyhow!("{error:?}"))
}

/// The proxy process.
pub struct Host {
    settings: Settings,
    process: Rc<RefCell<Process>>,
    linker: Linker<VmState>,
    vms: BTreeMap<VmUid, Vm>,
    last_vm: VmUid,
    plugins: BTreeMap<PluginId, Deployed>,
    added: usize,
}

impl Host {
    /// A process without plugins or clusters.
    pub fn new(settings: Settings) -> Self {
        let linker = hostcalls::linker(settings.dialect).expect("host functions link");
        Self {
            process: Rc::new(RefCell::new(Process::new(&settings))),
            settings,
            linker,
            vms: BTreeMap::new(),
            last_vm: 0,
            plugins: BTreeMap::new(),
            added: 0,
        }
    }

    /// Adds an HTTP filter: a VM on the main thread and on each worker. An nginx has workers only, and APISIX waits for
    /// the first request of each.
    pub fn add_filter(&mut self, wasm: &[u8], plugin: Plugin) -> anyhow::Result<PluginId> {
        let threads = self.settings.dialect.threads(self.settings.workers);
        self.add(wasm, plugin, &threads)
    }

    /// Adds a bootstrap service with `singleton: true`: one VM, on the main thread.
    pub fn add_service(&mut self, wasm: &[u8], plugin: Plugin) -> anyhow::Result<PluginId> {
        if self.settings.dialect.is_nginx() {
            bail!("{:?} has no bootstrap services", self.settings.dialect);
        }
        self.add(wasm, plugin, &[Thread::Main])
    }

    fn add(&mut self, wasm: &[u8], plugin: Plugin, threads: &[Thread]) -> anyhow::Result<PluginId> {
        let code = engine::compile(wasm)?;
        let plugin = Rc::new(plugin);
        let name = plugin.name.clone();
        if self.settings.dialect == Dialect::Envoy {
            let canary = self.place(&code, &plugin, Thread::Canary);
            if let Ok(placement) = canary {
                self.drop_vm(placement.vm);
            }
            canary.with_context(|| format!("plugin {name} did not pass its canary run"))?;
        }
        let mut on = BTreeMap::new();
        let at_once = self.settings.dialect != Dialect::Apisix;
        for thread in threads.iter().filter(|_| at_once) {
            let placement = self.place(&code, &plugin, *thread);
            on.insert(
                *thread,
                placement.with_context(|| format!("plugin {name} on {thread:?}"))?,
            );
        }
        self.added += 1;
        let id = PluginId(self.added);
        self.plugins.insert(id, Deployed { plugin, code, on });
        Ok(id)
    }

    /// Removes a plugin whose streams have ended. Shared data of its vm_id goes with the last plugin that has it.
    pub fn remove(&mut self, id: PluginId) {
        let Some(deployed) = self.plugins.remove(&id) else {
            return;
        };
        for placement in deployed.on.values() {
            let root = placement.root;
            self.enter(placement.vm, root, "proxy_on_done", &[root]);
            self.enter(placement.vm, root, "proxy_on_delete", &[root]);
            self.forget_context(placement.vm, root);
            let shared = self.plugins.values().any(|other| other.uses(placement.vm));
            if shared {
                let mut process = self.process.borrow_mut();
                process.clock.set_timer(placement.vm, root, Duration::ZERO);
            } else {
                self.drop_vm(placement.vm);
            }
        }
        let vm_id = &deployed.plugin.vm_id;
        if self.plugins.values().all(|other| other.plugin.vm_id != *vm_id) {
            self.process.borrow_mut().shared.erase(vm_id);
        }
    }

    /// Makes or finds the VM on a thread and starts the plugin's root context in it.
    fn place(&mut self, code: &Code, plugin: &Rc<Plugin>, thread: Thread) -> anyhow::Result<Placement> {
        let key = VmKey {
            thread,
            code: code.hash,
            vm_id: plugin.vm_id.clone(),
            vm_configuration: plugin.vm_configuration.clone(),
            env: plugin.env.clone(),
        };
        let alive = self.vms.iter().find(|(_, vm)| !vm.failed && vm.state().key == key);
        let uid = match alive {
            Some((uid, _)) => *uid,
            None => {
                self.last_vm += 1;
                let uid = self.last_vm;
                let (process, name, dialect) = (&self.process, &plugin.name, self.settings.dialect);
                let vm = Vm::new(&code.module, &self.linker, uid, key, process, name, dialect)?;
                self.vms.insert(uid, vm);
                uid
            }
        };
        match self.start_root(uid, plugin) {
            Ok(root) => Ok(Placement {
                vm: uid,
                root,
                loaded: self.now(),
            }),
            Err(error) => {
                self.drop_vm(uid);
                Err(error)
            }
        }
    }

    /// `onStart` and `onConfigure` of a root context.
    fn start_root(&mut self, uid: VmUid, plugin: &Rc<Plugin>) -> anyhow::Result<u32> {
        let vm = self.vms.get_mut(&uid).context("no such VM")?;
        let state = vm.state_mut();
        let root = state.allocate_context(Context::Root(plugin.clone()));
        let vm_size = state.key.vm_configuration.len() as u32;
        let steps = [
            ("proxy_on_context_create", 0, false),
            ("proxy_on_vm_start", vm_size, true),
            ("proxy_on_configure", plugin.configuration.len() as u32, true),
        ];
        for (export, argument, answers) in steps {
            if let Some(vm) = self.vms.get_mut(&uid) {
                vm.state_mut().configuration = Some(plugin.clone());
            }
            let called = self.enter(uid, root, export, &[root, argument]);
            if let Some(vm) = self.vms.get_mut(&uid) {
                vm.state_mut().configuration = None;
            }
            match called {
                Called::Failed => bail!("{export} trapped: {}", self.last_words()),
                Called::Returned { value: 0, .. } if answers => {
                    bail!("{export} returned false: {}", self.last_words())
                }
                _ => {}
            }
        }
        Ok(root)
    }

    fn last_words(&self) -> String {
        let process = self.process.borrow();
        let lines = process.log.iter().rev().take(3).rev();
        lines.map(|line| line.text.clone()).collect::<Vec<_>>().join(" | ")
    }

    /// Opens a stream on a worker. A dead VM is made anew here, and only here, if the policy says so.
    ///
    /// # Panics
    /// If the plugin is not a filter on this worker.
    pub fn open(&mut self, id: PluginId, worker: usize) -> Stream {
        let thread = Thread::Worker(worker);
        let deployed = self.plugins.get(&id).expect("a plugin that was added");
        let (plugin, code) = (deployed.plugin.clone(), deployed.code.clone());
        if self.settings.dialect.is_nginx() {
            return self.open_in_nginx(id, thread, &plugin, &code);
        }
        let placement = *deployed.on.get(&thread).expect("a filter on that worker");
        let now = self.now();
        let mut placed = self.is_alive(placement.vm).then_some(placement);
        let due = now.saturating_sub(placement.loaded) >= plugin.reload_backoff;
        if placed.is_none() && plugin.failure_policy == FailurePolicy::Reload && due {
            placed = self.place(&code, &plugin, thread).ok();
            let next = placed.unwrap_or(Placement {
                loaded: now,
                ..placement
            });
            if let Some(deployed) = self.plugins.get_mut(&id) {
                deployed.on.insert(thread, next);
            }
        }
        let membership = match (placed, plugin.failure_policy) {
            (Some(placement), _) => Membership::In(placement.vm),
            (None, FailurePolicy::Open | FailurePolicy::LegacyOpen) => Membership::Bypassed,
            (None, _) => Membership::NoVm,
        };
        let root = placed.map_or(0, |placement| placement.root);
        Stream::new(plugin, membership, root, now, self.settings.buffer_limit)
    }

    /// The same in an nginx module: no policy, and in APISIX a root that is made by the first request.
    fn open_in_nginx(&mut self, id: PluginId, thread: Thread, plugin: &Rc<Plugin>, code: &Code) -> Stream {
        let known = self.plugins.get(&id).and_then(|deployed| deployed.on.get(&thread));
        let mut placed = known.copied();
        if placed.is_none() && self.settings.dialect == Dialect::Apisix {
            placed = self.place(code, plugin, thread).ok();
            if let (Some(placement), Some(deployed)) = (placed, self.plugins.get_mut(&id)) {
                deployed.on.insert(thread, placement);
            }
        }
        let placed = placed.filter(|placement| self.is_alive(placement.vm));
        let membership = placed.map_or(Membership::NoVm, |placement| Membership::In(placement.vm));
        let root = placed.map_or(0, |placement| placement.root);
        let stream = Stream::new(plugin.clone(), membership, root, self.now(), self.settings.buffer_limit);
        let instance = placed.and_then(|placement| self.vm(placement.vm));
        stream.be_nginx(self.settings.dialect, instance.map_or(0, |vm| vm.state().instance));
        stream
    }

    /// WasmX puts a new instance in the place of one that trapped, with its roots. Timers and open calls of the old one stay.
    fn replace_instance(&mut self, uid: VmUid) {
        let Some(old) = self.vms.get(&uid) else { return };
        let (key, instance) = (old.state().key.clone(), old.state().instance + 1);
        let users: Vec<(Rc<Plugin>, Code)> = self
            .plugins
            .values()
            .filter(|deployed| deployed.uses(uid))
            .map(|deployed| (deployed.plugin.clone(), deployed.code.clone()))
            .collect();
        let Some((first, code)) = users.first() else { return };
        let (process, dialect) = (&self.process, self.settings.dialect);
        let made = Vm::new(&code.module, &self.linker, uid, key, process, &first.name, dialect);
        let Ok(mut vm) = made else { return };
        vm.state_mut().instance = instance;
        self.vms.insert(uid, vm);
        for (plugin, _) in &users {
            // One that traps while it is configured stays dead; the log has why.
            let _ = self.start_root(uid, plugin);
        }
    }

    /// Lets time pass: ticks and answers to callouts run in their order.
    pub fn advance(&mut self, by: Duration) {
        let until = self.now() + by;
        loop {
            let event = self.process.borrow_mut().clock.next_due(until);
            match event {
                Some(Event::Tick { vm, root }) => self.tick(vm, root),
                Some(Event::CalloutDone { vm, token }) => self.deliver(vm, token),
                None => return,
            }
        }
    }

    fn tick(&mut self, uid: VmUid, root: u32) {
        let called = self.enter(uid, root, "proxy_on_tick", &[root]);
        if called != Called::Failed || self.settings.dialect.is_nginx() {
            self.process.borrow_mut().clock.rearm(uid, root);
        }
    }

    /// `onHttpCallSuccess` or `onHttpCallFailure`.
    fn deliver(&mut self, uid: VmUid, token: u32) {
        let taken = self.process.borrow_mut().callouts.take(uid, token);
        let (Some(done), Some(vm)) = (taken, self.vms.get_mut(&uid)) else {
            return;
        };
        let (context, response) = (done.context, done.response);
        let stream = match vm.state().contexts.get(&context) {
            Some(Context::Stream(stream)) => Some(stream.clone()),
            _ => None,
        };
        let (headers, body) = response
            .as_ref()
            .map_or((0, 0), |r| (r.headers.len() as u32, r.body.len() as u32));
        vm.state_mut().callout = response.map(|response| (context, response));
        vm.state_mut().dispatch_status = done.ended;
        let args = [context, token, headers, body, 0];
        self.enter(uid, context, "proxy_on_http_call_response", &args);
        if let Some(vm) = self.vms.get_mut(&uid) {
            vm.state_mut().callout = None;
            vm.state_mut().dispatch_status = "";
        }
        if let Some(stream) = stream {
            self.call_is_over(&stream);
        }
    }

    /// Calls into a VM and then does what the guest's host calls put off.
    pub(crate) fn enter(&mut self, uid: VmUid, context: u32, export: &'static str, args: &[u32]) -> Called {
        let Some(vm) = self.vms.get_mut(&uid) else {
            return Called::Failed;
        };
        let called = vm.call(context, export, args);
        if called == Called::Failed {
            match self.settings.dialect {
                Dialect::Envoy => self.process.borrow_mut().clock.drop_timers(uid),
                // A new one that traps while it is configured is not made anew: that would never end.
                Dialect::WasmX if export != "proxy_on_configure" => self.replace_instance(uid),
                Dialect::WasmX | Dialect::Apisix => {}
            }
        }
        loop {
            let vm = self.vms.get_mut(&uid);
            let Some(action) = vm.and_then(|vm| vm.state_mut().actions.pop_front()) else {
                return called;
            };
            self.perform(action);
        }
    }

    pub(crate) fn vm(&self, uid: VmUid) -> Option<&Vm> {
        self.vms.get(&uid)
    }

    fn is_alive(&self, uid: VmUid) -> bool {
        self.vm(uid).is_some_and(|vm| !vm.failed)
    }

    pub(crate) fn allocate_stream_context(&mut self, uid: VmUid, stream: &StreamRef) -> Option<u32> {
        let vm = self.vms.get_mut(&uid).filter(|vm| !vm.failed)?;
        Some(vm.state_mut().allocate_context(Context::Stream(stream.clone())))
    }

    pub(crate) fn forget_context(&mut self, uid: VmUid, context: u32) {
        if let Some(vm) = self.vms.get_mut(&uid) {
            vm.state_mut().contexts.remove(&context);
        }
    }

    fn drop_vm(&mut self, uid: VmUid) {
        self.vms.remove(&uid);
        let mut process = self.process.borrow_mut();
        process.clock.drop_timers(uid);
        process.callouts.cancel(uid);
    }

    fn placed(&self, id: PluginId, thread: Thread) -> Option<&Vm> {
        self.vm(self.plugins.get(&id)?.on.get(&thread)?.vm)
    }

    /// Kills a VM as a trap would.
    pub fn kill(&mut self, id: PluginId, thread: Thread) {
        let placement = self.plugins.get(&id).and_then(|deployed| deployed.on.get(&thread));
        let uid = placement.map(|placement| placement.vm);
        let Some(vm) = uid.and_then(|uid| self.vms.get_mut(&uid)) else {
            return;
        };
        vm.fail("killed by the test");
        let uid = vm.state().uid;
        if self.settings.dialect == Dialect::WasmX {
            self.replace_instance(uid);
        } else {
            self.process.borrow_mut().clock.drop_timers(uid);
        }
    }
}

/// A test that did what the real host would not have survived has failed, unless it says that it knows
/// ([`Host::take_faults`]).
impl Drop for Host {
    fn drop(&mut self) {
        let faults = self.take_faults();
        assert!(
            faults.is_empty() || std::thread::panicking(),
            "the real host would not have survived this: {}",
            faults.join("; ")
        );
    }
}

impl Deployed {
    fn uses(&self, vm: VmUid) -> bool {
        self.on.values().any(|placement| placement.vm == vm)
    }
}
