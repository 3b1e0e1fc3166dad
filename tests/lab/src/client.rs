//! What clients send: jobs in order of time. How they come to be is in the files below.
//!
//! A job's text is a list of segments (equal ids = equal text), so the engine's blocks, a peer's blocks of 64 tokens and
//! the bytes that Berth reads are three views of one thing.

pub mod synthetic;
pub mod trace;

use berth_tests_simulator::chain::{Segment, of_segments};
use berth_tests_simulator::engine::{Adapter, Micros};
use berth_tests_simulator::random::{Rng, mix, mix_bytes, mix2};
use std::fmt::Write as _;

/// Tokens in a block of the engines.
pub const ENGINE_BLOCK: u32 = 16;
/// Tokens in a block of the peers' prefix indexes (the reference picker's least).
pub const PEER_BLOCK: u32 = 64;
/// A follow-up comes at its planned time, but not earlier than this after the answer before it.
pub const READING_TIME: Micros = 1_000_000;
/// Part of the requests that ask for no stream: their first byte is their last.
const NOT_STREAMING: f64 = 0.3;
/// Part of the requests that bound their output, by one of [`BOUNDS`].
const BOUNDED: f64 = 0.5;
const BOUNDS: [u32; 6] = [64, 256, 512, 1024, 2048, 4096];

/// One request, before it is sent.
#[derive(Debug, Clone, Default)]
pub struct Job {
    /// When.
    pub at: Micros,
    /// The job whose answer its client reads first.
    pub after: Option<usize>,
    /// The prompt.
    pub prompt: Vec<Segment>,
    /// Identity of the answer, where a later prompt repeats it.
    pub answer: Option<u64>,
    /// Tokens of the answer.
    pub output_tokens: u32,
    /// LoRA adapter.
    pub adapter: Option<Adapter>,
    /// Asks for a stream.
    pub streams: bool,
    /// `max_tokens`.
    pub bound: Option<u32>,
    /// The client leaves after this time.
    pub patience: Option<Micros>,
    /// The client leaves if it has no first token after this time.
    pub gives_up_after: Option<Micros>,
    /// It goes to this pod past all proxies, and counts nowhere.
    pub straight_to: Option<usize>,
    /// Its objective, as a trusted hop would name it.
    pub objective: Option<&'static str>,
    /// Its tenant, by the same.
    pub tenant: Option<&'static str>,
    /// Sum over `prompt`.
    pub prompt_tokens: u32,
    /// Hash chain of the engine's blocks, prompt and answer.
    pub chain: Vec<u64>,
    /// Hash chain of the peers' full blocks, prompt only, over the adapter's name.
    pub blocks: Vec<u64>,
}

impl Job {
    /// Tokens of prompt and answer.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.prompt_tokens + self.output_tokens
    }

    /// What stands for the first 100 characters of the prompt.
    #[must_use]
    pub fn anchor(&self) -> u64 {
        let adapter = self.adapter.as_ref().map_or(0, |name| mix_bytes(1, name.as_bytes()));
        mix2(self.prompt.first().map_or(0, |segment| segment.id), adapter)
    }

    /// The body of a chat request with this prompt.
    #[must_use]
    pub fn body(&self, base: &str, bytes_per_token: f64) -> Vec<u8> {
        let mut body = String::with_capacity((f64::from(self.prompt_tokens) * bytes_per_token) as usize + 256);
        let model = self.adapter.as_deref().unwrap_or(base);
        // Writing to a String cannot fail.
        let _ = write!(body, r#"{{"model":"{model}","stream":{}"#, self.streams);
        if let Some(bound) = self.bound {
            let _ = write!(body, r#","max_tokens":{bound}"#);
        }
        body.push_str(r#","messages":[{"role":"user","content":""#);
        let mut body = body.into_bytes();
        for segment in &self.prompt {
            write_text(&mut body, segment, bytes_per_token);
        }
        body.extend_from_slice(br#""}]}"#);
        body
    }
}

/// Letters that depend on the segment's id alone.
fn write_text(out: &mut Vec<u8>, segment: &Segment, bytes_per_token: f64) {
    let end = out.len() + (f64::from(segment.tokens) * bytes_per_token) as usize;
    let mut word = segment.id;
    while out.len() < end {
        word = mix(word);
        out.extend(word.to_le_bytes().map(|byte| b'a' + (byte & 15)));
    }
    out.truncate(end);
}

/// Fills in what follows from the rest and orders by time. `after` counts in the order given.
#[must_use]
pub fn finish(mut jobs: Vec<Job>, seed: u64) -> Vec<Job> {
    let mut rng = Rng::new(mix2(seed, 0x5eed));
    for job in &mut jobs {
        job.prompt.retain(|segment| segment.tokens > 0);
        job.prompt_tokens = job.prompt.iter().map(|segment| segment.tokens).sum();
        job.output_tokens = job.output_tokens.max(1);
        let answer = job.answer.map(|id| Segment {
            id,
            tokens: job.output_tokens,
        });
        let whole: Vec<Segment> = job.prompt.iter().copied().chain(answer).collect();
        job.chain = of_segments(&whole, ENGINE_BLOCK);
        let every = (PEER_BLOCK / ENGINE_BLOCK) as usize;
        let salt = job.adapter.as_ref().map_or(0, |name| mix_bytes(1, name.as_bytes()));
        let full = (job.prompt_tokens / PEER_BLOCK) as usize;
        let ends = job.chain.iter().skip(every - 1).step_by(every).take(full);
        job.blocks = ends.map(|hash| mix2(*hash, salt)).collect();
        job.streams = rng.unit() >= NOT_STREAMING;
        if rng.unit() < BOUNDED {
            let skip = rng.below(2) as usize;
            job.bound = BOUNDS
                .iter()
                .filter(|bound| **bound >= job.output_tokens)
                .nth(skip)
                .copied();
        }
    }
    sort(jobs)
}

fn sort(jobs: Vec<Job>) -> Vec<Job> {
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by_key(|index| jobs[*index].at);
    let mut place = vec![0; jobs.len()];
    order.iter().enumerate().for_each(|(new, old)| place[*old] = new);
    let mut jobs: Vec<(usize, Job)> = jobs
        .into_iter()
        .enumerate()
        .map(|(old, job)| (place[old], job))
        .collect();
    jobs.sort_by_key(|(new, _)| *new);
    let renamed = |(_, mut job): (usize, Job)| {
        job.after = job.after.map(|old| place[old]);
        job
    };
    jobs.into_iter().map(renamed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(at: Micros, segments: &[(u64, u32)]) -> Job {
        let prompt = segments.iter().map(|&(id, tokens)| Segment { id, tokens }).collect();
        Job {
            at,
            prompt,
            output_tokens: 5,
            ..Job::default()
        }
    }

    #[test]
    fn the_three_views_of_a_prompt_share_the_same_prefix() {
        let jobs = finish(vec![job(0, &[(1, 128), (2, 64)]), job(1, &[(1, 128), (3, 64)])], 1);
        let common = |a: &[u64], b: &[u64]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        assert_eq!((jobs[0].chain.len(), common(&jobs[0].chain, &jobs[1].chain)), (12, 8));
        assert_eq!((jobs[0].blocks.len(), common(&jobs[0].blocks, &jobs[1].blocks)), (3, 2));
        let bodies: Vec<_> = jobs.iter().map(|job| job.body("m", 4.0)).collect();
        let text = |body: &[u8]| {
            String::from_utf8(body.to_vec())
                .unwrap()
                .split("content\":\"")
                .nth(1)
                .unwrap()
                .to_owned()
        };
        let (one, other) = (text(&bodies[0]), text(&bodies[1]));
        assert_eq!(one.len(), 192 * 4 + 4);
        assert_eq!(
            one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count() / 4,
            128
        );
    }

    #[test]
    fn jobs_are_in_order_of_time_and_still_follow_the_right_one() {
        let follower = Job {
            after: Some(0),
            ..job(30, &[(1, 16)])
        };
        let jobs = finish(vec![job(20, &[(1, 16)]), follower, job(10, &[(2, 16)])], 1);
        assert_eq!(jobs.iter().map(|job| job.at).collect::<Vec<_>>(), [10, 20, 30]);
        assert_eq!(jobs[2].after, Some(1));
    }

    #[test]
    fn three_in_ten_do_not_stream() {
        let jobs = finish((0..4000).map(|at| job(at, &[(1, 16)])).collect(), 1);
        let share = jobs.iter().filter(|job| !job.streams).count() as f64 / 4000.0;
        assert!((share - 0.3).abs() < 0.03, "{share}");
    }
}
