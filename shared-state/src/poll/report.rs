//! What pods report in their answers, merged with what was scraped: the newer word counts.

use super::{Poller, Stat};
use crate::clock::Now;
use crate::pod::PodAddress;
use crate::reports::Report;

use super::pod::Pod;

impl Poller {
    /// Takes reports in. A pod that reports is scraped no less often for it: its running requests and adapters, its counters and
    /// its tempo are on its page alone, and decisions are clearly worse where these are twice as old (DESIGN.md).
    pub(super) fn settle_reports(&mut self, reports: &[(PodAddress, Report)], now: Now) {
        for (address, report) in reports {
            let Some(pod) = self.pods.get_mut(address) else {
                continue;
            };
            if pod.report(report, now) {
                self.dirty = true;
                self.tally.add(Stat::LoadReports, 1);
            }
        }
    }
}

impl Pod {
    /// Takes a report in, if it is newer than what is known. The page of several engines has their mean,
    /// while a report speaks for one of them; a pod without a page has no capacity to compare with. One that lacks a
    /// gauge of the page is left alone: its time would pass for that gauge's, and what was sent in between for shown.
    fn report(&mut self, report: &Report, now: Now) -> bool {
        let row = &mut self.row;
        let newer = row.scraped_at.is_some() && Some(report.at) > row.gauges_at() && report.at <= now.wall;
        let lacks = (report.waiting.is_none() && row.load.waiting.is_some())
            || (report.kv.is_none() && row.load.kv_mean.is_some());
        if !newer || lacks || row.load.engines > 1 {
            return false;
        }
        row.reported_at = Some(report.at);
        row.load.waiting = report.waiting.or(row.load.waiting);
        row.load.kv_mean = report.kv.or(row.load.kv_mean);
        row.load.kv_max = report.kv.or(row.load.kv_max);
        true
    }
}
