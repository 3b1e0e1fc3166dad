//! Durations and sizes as people write them, rules for texts, and the nearest known name.

use crate::discovery::range::Range;
use crate::limits;
use crate::names;
use crate::pod::PodAddress;
use crate::units::Millis;

/// Reads `200ms`, `1s` or `1m`. `None` for anything else, also for a number too large.
pub(super) fn duration(text: &str) -> Option<Millis> {
    let (digits, factor) = text
        .strip_suffix("ms")
        .map(|digits| (digits, 1))
        .or_else(|| text.strip_suffix('s').map(|digits| (digits, 1_000)))
        .or_else(|| text.strip_suffix('m').map(|digits| (digits, 60_000)))?;
    whole(digits)?.checked_mul(factor).map(Millis)
}

/// Reads `768KiB` or `16MiB`. `None` for anything else, also for a number too large.
pub(super) fn size(text: &str) -> Option<u64> {
    let (digits, factor) = text
        .strip_suffix("KiB")
        .map(|digits| (digits, 1 << 10))
        .or_else(|| text.strip_suffix("MiB").map(|digits| (digits, 1 << 20)))?;
    whole(digits)?.checked_mul(factor)
}

fn whole(digits: &str) -> Option<u64> {
    let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| digits.parse().ok()).flatten()
}

/// A duration as the config writes it, in the largest unit that divides it: `1m`, `90s`, `200ms`.
#[must_use]
pub fn duration_text(duration: Millis) -> String {
    match duration.0 {
        0 => "0ms".to_owned(),
        millis if millis.is_multiple_of(60_000) => format!("{}m", millis / 60_000),
        millis if millis.is_multiple_of(1_000) => format!("{}s", millis / 1_000),
        millis => format!("{millis}ms"),
    }
}

/// A size as the config writes it, in the largest unit that divides it: `16MiB`, `768KiB`, `1000`.
#[must_use]
pub fn size_text(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        bytes if bytes.is_multiple_of(1 << 20) => format!("{}MiB", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{}KiB", bytes >> 10),
        bytes => bytes.to_string(),
    }
}

/// What a text must look like: for people, for JSON Schema, and for the checker. A property test
/// keeps the last two together.
#[derive(Debug)]
pub(super) struct TextRule {
    /// Completes "must be ...".
    pub(super) says: &'static str,
    /// Regular expression of JSON Schema. May accept a little more than `accepts`.
    pub(super) pattern: &'static str,
    /// The rule.
    pub(super) accepts: fn(&str) -> bool,
}

/// A pool's, part of a shared-data key and of stat names; an objective's, which a header is compared with.
pub(super) static SHORT_NAME: TextRule = TextRule {
    says: "1 to 63 of `a-z`, `0-9` and `-`, not starting with `-`",
    pattern: "^[a-z0-9][a-z0-9-]{0,62}$",
    accepts: |text| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        made_of(text, 63, plain) && !text.starts_with('-')
    },
};

/// A model's name becomes a header value.
pub(super) static MODEL_NAME: TextRule = TextRule {
    says: "1 to 256 visible ASCII characters, without spaces",
    pattern: "^[!-~]{1,256}$",
    accepts: |text| visible(text, limits::NAME_MAX_BYTES),
};

/// The `:path` of a call.
pub(super) static PATH: TextRule = TextRule {
    says: "a path that starts with `/`, at most 1024 visible ASCII characters",
    pattern: "^/[!-~]{0,1023}$",
    accepts: |text| text.starts_with('/') && visible(text, limits::PATH_MAX_BYTES),
};

/// A cluster of the proxy.
pub(super) static CLUSTER: TextRule = TextRule {
    says: "the name of a cluster of the proxy, 1 to 256 visible ASCII characters",
    pattern: "^[!-~]{1,256}$",
    accepts: |text| visible(text, limits::CLUSTER_MAX_BYTES),
};

/// A route of the proxy.
pub(super) static ROUTE: TextRule = TextRule {
    says: "the name of a route of the proxy, 1 to 256 visible ASCII characters",
    pattern: "^[!-~]{1,256}$",
    accepts: |text| visible(text, limits::CLUSTER_MAX_BYTES),
};

/// A part of a property's path.
pub(super) static PROPERTY_KEY: TextRule = TextRule {
    says: "1 to 256 visible ASCII characters",
    pattern: "^[!-~]{1,256}$",
    accepts: |text| visible(text, limits::CLUSTER_MAX_BYTES),
};

/// A variable in the VM's environment.
pub(super) static VARIABLE: TextRule = TextRule {
    says: "the name of an environment variable: 1 to 128 of `A-Z`, `a-z`, `0-9` and `_`, not starting with a digit",
    pattern: "^[A-Za-z_][A-Za-z0-9_]{0,127}$",
    accepts: |text| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let digit_first = text.starts_with(|first: char| first.is_ascii_digit());
        made_of(text, limits::VARIABLE_MAX_BYTES, plain) && !digit_first
    },
};

/// A header that a config adds to a call, a scrape or a read of the pods.
pub(super) static HEADER_NAME: TextRule = TextRule {
    says: "a header name in lower case, 1 to 64 of `a-z`, `0-9`, `-` and `_`, none that frames the request or picks the pod",
    pattern: "^[a-z0-9][a-z0-9_-]{0,63}$",
    accepts: |text| {
        const FRAMING: [&str; 7] = [
            "connection",
            "content-length",
            "host",
            "keep-alive",
            "te",
            "transfer-encoding",
            "upgrade",
        ];
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        made_of(text, limits::HEADER_NAME_MAX_BYTES, plain)
            && !text.starts_with(['-', '_'])
            && !FRAMING.contains(&text)
            && !names::STRIPPED.contains(&text)
    },
};

/// Part of a Kubernetes name, as the API checks it.
pub(super) static KUBERNETES_NAME: TextRule = TextRule {
    says: "a Kubernetes name, 1 to 253 of `a-z`, `0-9`, `-` and `.`",
    pattern: "^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$",
    accepts: |text| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
        made_of(text, limits::KUBERNETES_NAME_MAX_BYTES, plain)
            && !text.starts_with(['-', '.'])
            && !text.ends_with(['-', '.'])
    },
};

/// A port of an EndpointSlice. A name has a letter, so it is never a number.
pub(super) static PORT: TextRule = TextRule {
    says: "a port's name, 1 to 63 of `a-z`, `0-9` and `-`, or its number from 1 to 65535, as a text",
    pattern: "^[a-z0-9-]{1,63}$",
    accepts: |text| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let number = text.bytes().all(|byte| byte.is_ascii_digit());
        made_of(text, 63, plain) && (!number || text.parse().is_ok_and(|number: u16| number != 0))
    },
};

/// Addresses that may be pods.
pub(super) static RANGE: TextRule = TextRule {
    says: "a range of addresses such as `10.0.0.0/8` or `fd00::/8`, without bits behind the prefix",
    pattern: "^[0-9a-fA-F:.]{2,39}/[0-9]{1,3}$",
    accepts: |text| text.len() <= 43 && text.parse::<Range>().is_ok(),
};

/// The name of a label: a Kubernetes one fits.
pub(super) static LABEL_NAME: TextRule = TextRule {
    says: "the name of a label: 1 to 63 of letters, digits, `-`, `_`, `.` and `/`",
    pattern: r"^[A-Za-z0-9_./-]{1,63}$",
    accepts: |text| made_of(text, limits::LABEL_PART_MAX_BYTES, label_byte),
};

/// A label.
pub(super) static LABEL: TextRule = TextRule {
    says: "a label `name=value`, both 1 to 63 of letters, digits, `-`, `_`, `.` and `/`",
    pattern: r"^[A-Za-z0-9_./-]{1,63}=[A-Za-z0-9_./-]{1,63}$",
    accepts: |text| {
        text.split_once('=').is_some_and(|(name, value)| {
            [name, value]
                .into_iter()
                .all(|part| made_of(part, limits::LABEL_PART_MAX_BYTES, label_byte))
        })
    },
};

/// Pods that a label is for.
pub(super) static PODS: TextRule = TextRule {
    says: "`ip:port` of a pod, or a range of addresses such as `10.0.1.0/24`, without bits behind the prefix",
    pattern: r"^[0-9a-fA-F:.\[\]/]{3,64}$",
    accepts: |text| text.len() <= 64 && (text.parse::<PodAddress>().is_ok() || text.parse::<Range>().is_ok()),
};

/// Those of a Kubernetes label.
pub(crate) const fn label_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/')
}

/// What a server is called in a request to it.
pub(super) static AUTHORITY: TextRule = TextRule {
    says: "a host, with or without a port: 1 to 256 of letters, digits, `-`, `.`, `_`, `:`, `[` and `]`",
    pattern: r"^[A-Za-z0-9._:\[\]-]{1,256}$",
    accepts: |text| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
        made_of(text, limits::CLUSTER_MAX_BYTES, plain)
    },
};

fn visible(text: &str, max: usize) -> bool {
    made_of(text, max, |byte| byte.is_ascii_graphic())
}

/// 1 to `max` bytes, each of which is `plain`.
fn made_of(text: &str, max: usize, plain: impl Fn(u8) -> bool) -> bool {
    (1..=max).contains(&text.len()) && text.bytes().all(plain)
}

/// The known name that was probably meant: equal up to case and separators, or a few letters away.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > limits::KEY_MAX_BYTES {
        return None;
    }
    let name = letters(name);
    known
        .into_iter()
        .map(|candidate| (distance(&name, &letters(candidate)), candidate))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, _)| *distance <= (name.len() / 3).min(3))
        .map(|(_, candidate)| candidate)
}

fn letters(name: &str) -> Vec<u8> {
    let kept = name.bytes().filter(|byte| !b"-_ ".contains(byte));
    kept.map(|byte| byte.to_ascii_lowercase()).collect()
}

/// Levenshtein distance: insertions, deletions and replacements, one row at a time.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (index, from) in a.iter().enumerate() {
        let (mut diagonal, mut left) = (index, index + 1);
        for (cell, to) in row.iter_mut().skip(1).zip(b) {
            let above = *cell;
            left = (diagonal + usize::from(from != to)).min(above + 1).min(left + 1);
            *cell = left;
            diagonal = above;
        }
        if let Some(first) = row.first_mut() {
            *first = index + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}
