//! Where adapters live: GPU slots over a CPU cache over the disk, both least recently used first out.
//!
//! vLLM loads what a batch needs just before the batch runs, in the same thread: everyone in the batch waits.

use super::config::{Micros, StepCost};
use std::sync::Arc;

/// Name of an adapter.
pub type Adapter = Arc<str>;

#[derive(Debug, Clone)]
pub(super) struct AdapterCache {
    /// Oldest use first. Everything in a slot is in CPU memory, too.
    gpu: Vec<Adapter>,
    cpu: Vec<Adapter>,
    max_gpu: usize,
    max_cpu: usize,
    /// Copies into slots so far.
    loads: u64,
}

impl AdapterCache {
    pub(super) fn new(max_gpu: u32, max_cpu: u32) -> Self {
        Self {
            gpu: Vec::new(),
            cpu: Vec::new(),
            max_gpu: max_gpu as usize,
            max_cpu: max_cpu as usize,
            loads: 0,
        }
    }

    /// Brings a batch's adapters, at most `max_gpu` of them, into slots; returns how long that takes.
    ///
    /// Those present are marked as used first, so that loading one never throws out another of the same batch.
    pub(super) fn activate(&mut self, batch: &[Adapter], cost: &StepCost) -> Micros {
        for adapter in batch {
            touch(&mut self.gpu, adapter);
            touch(&mut self.cpu, adapter);
        }
        batch.iter().map(|adapter| self.load(adapter, cost)).sum()
    }

    fn load(&mut self, adapter: &Adapter, cost: &StepCost) -> Micros {
        if self.gpu.contains(adapter) {
            return 0;
        }
        self.loads += 1;
        let mut time = cost.adapter_from_cpu;
        if !self.cpu.contains(adapter) {
            time += cost.adapter_from_disk;
            if self.cpu.len() >= self.max_cpu && !self.cpu.is_empty() {
                let oldest = self.cpu.remove(0);
                self.gpu.retain(|other| *other != oldest);
            }
            self.cpu.push(Arc::clone(adapter));
        }
        if self.gpu.len() >= self.max_gpu && !self.gpu.is_empty() {
            self.gpu.remove(0);
        }
        self.gpu.push(Arc::clone(adapter));
        time
    }

    pub(super) fn loads(&self) -> u64 {
        self.loads
    }

    pub(super) fn remove(&mut self, adapter: &str) {
        self.gpu.retain(|other| **other != *adapter);
        self.cpu.retain(|other| **other != *adapter);
    }

    /// In GPU slots, oldest use first.
    pub(super) fn on_gpu(&self) -> &[Adapter] {
        &self.gpu
    }

    /// In CPU memory, oldest use first.
    pub(super) fn in_cpu(&self) -> &[Adapter] {
        &self.cpu
    }
}

/// Moves an adapter to the newest end, if it is there.
fn touch(list: &mut [Adapter], adapter: &Adapter) {
    if let Some(at) = list.iter().position(|other| other == adapter) {
        list[at..].rotate_left(1);
    }
}

#[cfg(test)]
mod tests {
    use super::{Adapter, AdapterCache, StepCost};

    const COST: StepCost = StepCost {
        adapter_from_cpu: 1,
        adapter_from_disk: 100,
        ..StepCost::H100
    };

    #[track_caller]
    fn activate(cache: &mut AdapterCache, batch: &[&str], time: u64, gpu: &[&str], cpu: &[&str]) {
        let batch: Vec<Adapter> = batch.iter().map(|name| Adapter::from(*name)).collect();
        assert_eq!(cache.activate(&batch, &COST), time);
        let names = |list: &[Adapter]| list.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        assert_eq!((names(cache.on_gpu()), names(cache.in_cpu())), (owned(gpu), owned(cpu)));
    }

    fn owned(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_slot_hit_is_free_a_cpu_hit_is_a_copy_and_a_miss_reads_the_disk() {
        let mut cache = AdapterCache::new(2, 3);
        activate(&mut cache, &["a"], 101, &["a"], &["a"]);
        activate(&mut cache, &["a"], 0, &["a"], &["a"]);
        activate(&mut cache, &["b"], 101, &["a", "b"], &["a", "b"]);
        // No slot left: the oldest, a, leaves the GPU but stays in CPU memory.
        activate(&mut cache, &["c"], 101, &["b", "c"], &["a", "b", "c"]);
        activate(&mut cache, &["a"], 1, &["c", "a"], &["b", "c", "a"]);
        // CPU memory is full as well: b goes for good.
        activate(&mut cache, &["d"], 101, &["a", "d"], &["c", "a", "d"]);
    }

    #[test]
    fn loading_one_adapter_never_throws_out_another_of_the_same_batch() {
        let mut cache = AdapterCache::new(2, 2);
        activate(&mut cache, &["a", "b"], 202, &["a", "b"], &["a", "b"]);
        // a is the oldest, but it is in the batch: b must go.
        activate(&mut cache, &["c", "a"], 101, &["a", "c"], &["a", "c"]);
    }

    #[test]
    fn an_unloaded_adapter_is_read_from_disk_again() {
        let mut cache = AdapterCache::new(1, 1);
        activate(&mut cache, &["a"], 101, &["a"], &["a"]);
        cache.remove("a");
        activate(&mut cache, &["a"], 101, &["a"], &["a"]);
    }
}
