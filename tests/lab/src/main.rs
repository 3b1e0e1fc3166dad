//! `berth-lab`: see scripts/lab.
use berth_tests_lab::{arm::Arm, client::trace::Traces, scenario, study};
fn main() -> anyhow::Result<()> {
    let traces = Traces::read(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/traces")))?;
    let filter = std::env::args().nth(1).unwrap_or_default();
    for s in scenario::catalogue() {
        if !s.name.contains(&filter) || s.family.is_about_berth_alone() { continue }
        for arm in Arm::ALL {
            if arm == Arm::Lookahead { continue }
            let t = std::time::Instant::now();
            let f = study::run(&s, arm, &traces, 1, 1.0).figures();
            println!("{:16} {:26} n {:5} ttft {:8.0} p50 {:8.0} p99 {:8.0} e2e {:8.0} itl99 {:6.0} hits {:.2} loads {:5} pre {:4} good {:.3} fail {} took {:?}", s.name, arm.name(), f.ttft.len(), f.ttft_mean, f.ttft_p50, f.ttft_p99, f.e2e_p50, f.itl_p99, f.hits, f.loads, f.preemptions, f.goodput, f.failed, t.elapsed());
        }
    }
    Ok(())
}
