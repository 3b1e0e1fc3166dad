//! What a test sees of the process, and the few things it sets from outside: clusters, answers, shared data.

use super::{Host, PluginId, Thread};
use crate::abi::LogLevel;
use crate::callouts::{Answer, Callout};
use crate::metrics::MetricKind;
use crate::process::LogLine;
use crate::vm::Vm;
use std::time::Duration;

impl Host {
    /// True if the plugin has no living VM on this thread.
    pub fn is_failed(&self, id: PluginId, thread: Thread) -> bool {
        self.placed(id, thread).is_none_or(|vm| vm.failed)
    }

    /// Instructions the VM has executed since it was made, as wasmtime counts fuel; 0 without a VM.
    pub fn fuel_used(&self, id: PluginId, thread: Thread) -> u64 {
        self.placed(id, thread).map_or(0, Vm::fuel_used)
    }

    /// Size of the VM's linear memory, bytes.
    pub fn memory_size(&self, id: PluginId, thread: Thread) -> usize {
        self.placed(id, thread).map_or(0, Vm::memory_size)
    }

    /// Unix time.
    pub fn now(&self) -> Duration {
        self.process.borrow().clock.now()
    }

    /// Time until the next tick or answer.
    pub fn until_next_event(&self) -> Option<Duration> {
        self.process.borrow().clock.until_next()
    }

    /// Makes a cluster callable.
    pub fn add_cluster(&mut self, name: &str) {
        self.process.borrow_mut().callouts.add_cluster(name);
    }

    /// Makes a cluster unknown again.
    pub fn remove_cluster(&mut self, name: &str) {
        self.process.borrow_mut().callouts.remove_cluster(name);
    }

    /// Says what callouts get from now on. Without it they get silence.
    pub fn on_callout(&mut self, responder: impl FnMut(&Callout) -> Answer + 'static) {
        let responder = Box::new(responder);
        self.process.borrow_mut().callouts.set_responder(responder);
    }

    /// Every callout that was sent, in order.
    pub fn callouts(&self) -> Vec<Callout> {
        self.process.borrow().callouts.made().to_vec()
    }

    /// Number of callouts that wait for an answer.
    pub fn open_callouts(&self) -> usize {
        self.process.borrow().callouts.open_count()
    }

    /// Value and cas of a shared-data key.
    pub fn shared_data(&self, vm_id: &str, key: &str) -> Option<(Vec<u8>, u32)> {
        let process = self.process.borrow();
        let (value, cas) = process.shared.get(vm_id, key)?;
        Some((value.to_vec(), cas))
    }

    /// Writes a key as some other plugin with this vm_id could.
    pub fn set_shared_data(&mut self, vm_id: &str, key: &str, value: &[u8]) {
        let mut process = self.process.borrow_mut();
        let cas = process.shared.get(vm_id, key).map_or(0, |(_, cas)| cas);
        let set = process.shared.set(vm_id, key, value, cas);
        set.expect("the right cas");
    }

    /// Loses all shared data, as a reload of nginx does, or a zone that was too small.
    pub fn lose_shared_data(&mut self, vm_id: &str) {
        self.process.borrow_mut().shared.erase(vm_id);
    }

    /// Tears one read in so many of values that were overwritten; 0 = none.
    pub fn tear_reads(&mut self, one_in: u32) {
        self.process.borrow_mut().shared.tear(one_in);
    }

    /// What the guests did so far that the real host would not have survived. A fault that is not taken fails the test.
    pub fn take_faults(&mut self) -> Vec<String> {
        std::mem::take(&mut self.process.borrow_mut().faults)
    }

    /// Keys under a vm_id, sorted.
    pub fn shared_data_keys(&self, vm_id: &str) -> Vec<String> {
        self.process.borrow().shared.keys(vm_id)
    }

    /// Value of a counter.
    pub fn counter(&self, name: &str) -> Option<u64> {
        self.process.borrow().metrics.get(MetricKind::Counter, name)
    }

    /// Value of a gauge.
    pub fn gauge(&self, name: &str) -> Option<u64> {
        self.process.borrow().metrics.get(MetricKind::Gauge, name)
    }

    /// Every sample of a histogram, in order.
    pub fn histogram(&self, name: &str) -> Option<Vec<u64>> {
        self.process.borrow().metrics.samples(name).map(<[u64]>::to_vec)
    }

    /// Kind and name of every metric.
    pub fn metrics(&self) -> Vec<(MetricKind, String)> {
        self.process.borrow().metrics.names()
    }

    /// Every log line so far.
    pub fn log(&self) -> Vec<LogLine> {
        self.process.borrow().log.clone()
    }

    /// Log lines since the last call; they are removed.
    pub fn take_log(&mut self) -> Vec<LogLine> {
        std::mem::take(&mut self.process.borrow_mut().log)
    }

    /// What `proxy_get_log_level` says. All lines are kept whatever it is.
    pub fn set_log_level(&mut self, level: LogLevel) {
        self.process.borrow_mut().log_level = level;
    }
}
