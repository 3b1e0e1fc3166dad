//! What all VMs of the proxy process share: time, shared data, statistics, callouts, log, random numbers.

use crate::abi::LogLevel;
use crate::callouts::Callouts;
use crate::clock::Clock;
use crate::host::{Settings, Thread};
use crate::metrics::Metrics;
use crate::shared_data::SharedData;
use std::time::Duration;

/// One line of the proxy's log.
#[derive(Clone, Debug)]
pub struct LogLine {
    /// Unix time.
    pub at: Duration,
    pub thread: Thread,
    /// Name of the plugin, or of the first plugin of the VM while it starts.
    pub plugin: String,
    pub level: LogLevel,
    pub text: String,
    /// True where the host speaks (traps, misuse that Envoy would not forgive) and not the guest.
    pub from_host: bool,
}

pub(crate) struct Process {
    pub(crate) clock: Clock,
    pub(crate) shared: SharedData,
    pub(crate) metrics: Metrics,
    pub(crate) callouts: Callouts,
    pub(crate) log: Vec<LogLine>,
    pub(crate) log_level: LogLevel,
    pub(crate) fuel_per_callback: u64,
    /// Largest value that shared data takes where the host has a zone for it, bytes.
    pub(crate) zone: usize,
    pub(crate) wasi_clock: bool,
    pub(crate) properties: bool,
    /// What the real host would not have survived.
    pub(crate) faults: Vec<String>,
    random: u64,
}

impl Process {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            clock: Clock::new(settings.start),
            shared: SharedData::new(settings.cas_rules),
            metrics: Metrics::default(),
            callouts: Callouts::default(),
            log: Vec::new(),
            log_level: LogLevel::Trace,
            fuel_per_callback: settings.fuel_per_callback,
            zone: settings.zone,
            wasi_clock: settings.wasi_clock,
            properties: settings.properties,
            faults: Vec::new(),
            random: settings.seed,
        }
    }

    /// SplitMix64: any seed gives a good sequence.
    pub(crate) fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
