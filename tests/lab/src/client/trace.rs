//! Jobs from public traces: Mooncake (prefix blocks) and Azure (sizes only). See traces/README.md.

use super::Job;
use anyhow::{Context, Result};
use berth_tests_simulator::chain::Segment;
use berth_tests_simulator::engine::Micros;
use berth_tests_simulator::random::mix2;
use serde::Deserialize;
use std::path::Path;

/// Tokens in a block of the Mooncake trace.
const MOONCAKE_BLOCK: u32 = 512;

/// The traces, read once.
#[derive(Debug, Default)]
pub struct Traces {
    mooncake: Vec<Row>,
    azure_code: Vec<Row>,
    azure_conv: Vec<Row>,
}

/// Which one.
#[derive(Debug, Clone, Copy)]
pub enum Which {
    /// Conversations, with the identity of their prefixes.
    Mooncake,
    /// Code completions: long prompts, very short answers.
    AzureCode,
    /// Chats.
    AzureConv,
}

#[derive(Debug, Clone, Default)]
struct Row {
    at: Micros,
    input: u32,
    output: u32,
    blocks: Vec<u64>,
}

/// How rows become jobs.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// Rows taken, from a place that depends on the seed.
    pub rows: usize,
    /// The trace's time passes this much faster.
    pub speed: f64,
    /// Longer prompts are left out.
    pub prompt_max: u32,
    /// Longer answers are cut.
    pub output_max: u32,
}

#[derive(Deserialize)]
struct MooncakeLine {
    timestamp: u64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

impl Traces {
    /// Reads the three files of a folder.
    ///
    /// # Errors
    /// A file is missing, or a line is not of its form.
    pub fn read(folder: &Path) -> Result<Self> {
        let text = |name: &str| {
            let path = folder.join(name);
            std::fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))
        };
        Ok(Self {
            mooncake: mooncake(&text("mooncake_conversation_trace.jsonl")?)?,
            azure_code: azure(&text("azure_llm_2023_code.csv")?)?,
            azure_conv: azure(&text("azure_llm_2023_conv.csv")?)?,
        })
    }

    /// Jobs from a part of a trace. Time starts at 0.
    #[must_use]
    pub fn jobs(&self, which: Which, cut: Cut, seed: u64) -> Vec<Job> {
        let rows = match which {
            Which::Mooncake => &self.mooncake,
            Which::AzureCode => &self.azure_code,
            Which::AzureConv => &self.azure_conv,
        };
        let places = rows.len().saturating_sub(cut.rows).max(1) as u64;
        let start = (mix2(seed, 0x7ace) % places) as usize;
        let part: Vec<&Row> = rows
            .iter()
            .skip(start)
            .filter(|row| row.input <= cut.prompt_max)
            .take(cut.rows)
            .collect();
        let first = part.first().map_or(0, |row| row.at);
        part.iter()
            .enumerate()
            .map(|(index, row)| Job {
                at: ((row.at - first) as f64 / cut.speed) as Micros,
                prompt: row.prompt(index as u64, seed),
                output_tokens: row.output.min(cut.output_max),
                ..Job::default()
            })
            .collect()
    }
}

impl Row {
    /// Blocks of the trace, or one text nobody else has.
    fn prompt(&self, index: u64, seed: u64) -> Vec<Segment> {
        if self.blocks.is_empty() {
            return vec![Segment {
                id: mix2(mix2(seed, 0xa2), index),
                tokens: self.input,
            }];
        }
        let mut left = self.input;
        let take = |id: &u64| {
            let tokens = left.min(MOONCAKE_BLOCK);
            left -= tokens;
            Segment {
                id: mix2(0x3007, *id),
                tokens,
            }
        };
        self.blocks.iter().map(take).collect()
    }
}

fn mooncake(text: &str) -> Result<Vec<Row>> {
    let row = |(number, line): (usize, &str)| {
        let line: MooncakeLine = serde_json::from_str(line).with_context(|| format!("line {}", number + 1))?;
        let (at, input, output) = (line.timestamp * 1000, line.input_length, line.output_length);
        Ok(Row {
            at,
            input,
            output,
            blocks: line.hash_ids,
        })
    };
    text.lines().enumerate().map(row).collect()
}

fn azure(text: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate().skip(1) {
        let row = azure_row(line.trim()).with_context(|| format!("line {}: {line:?}", number + 1))?;
        rows.push(row);
    }
    rows.sort_by_key(|row: &Row| row.at);
    Ok(rows)
}

/// `2023-11-16 18:17:03.9799600,4808,10`, all within one day.
fn azure_row(line: &str) -> Option<Row> {
    let mut fields = line.split(',');
    let clock = fields.next()?.split(' ').nth(1)?;
    let mut parts = clock.split(':');
    let hours: f64 = parts.next()?.parse().ok()?;
    let minutes: f64 = parts.next()?.parse().ok()?;
    let seconds: f64 = parts.next()?.parse().ok()?;
    Some(Row {
        at: ((hours * 3600.0 + minutes * 60.0 + seconds) * 1e6) as Micros,
        input: fields.next()?.parse().ok()?,
        output: fields.next()?.parse().ok()?,
        blocks: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_azure_row_is_a_clock_and_two_sizes() {
        let row = azure_row("2023-11-16 18:17:03.9799600,4808,10").unwrap();
        assert_eq!((row.at, row.input, row.output), (65_823_979_960, 4808, 10));
        assert!(azure_row("2023-11-16 18:17:03.9,x,10").is_none());
    }

    #[test]
    fn a_mooncake_row_has_blocks_of_512_and_a_rest() {
        let text = r#"{"timestamp": 2, "input_length": 1030, "output_length": 7, "hash_ids": [0, 1, 9]}"#;
        let rows = mooncake(text).unwrap();
        let sizes: Vec<u32> = rows[0].prompt(0, 1).iter().map(|segment| segment.tokens).collect();
        assert_eq!((rows[0].at, sizes), (2000, vec![512, 512, 6]));
    }

    #[test]
    fn the_shipped_traces_can_be_read_and_cut() {
        let traces = Traces::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("traces")).unwrap();
        let cut = Cut {
            rows: 100,
            speed: 2.0,
            prompt_max: 8000,
            output_max: 500,
        };
        for which in [Which::Mooncake, Which::AzureCode, Which::AzureConv] {
            let jobs = traces.jobs(which, cut, 3);
            assert_eq!((jobs.len(), jobs[0].at), (100, 0));
            assert!(jobs.iter().all(|job| job.output_tokens <= 500));
        }
    }
}
