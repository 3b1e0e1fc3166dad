//! One line of exposition text: name, labels, value. Borrows, never allocates.
//!
//! ```text
//! line      = blanks name blanks [ "{" [ label *( "," label ) [ "," ] ] "}" ] blanks value
//!             [ blanks timestamp ] [ blanks "#" exemplar ]
//! label     = name "=" DQUOTE *( escape / byte ) DQUOTE
//! escape    = "\" ( "\" / DQUOTE / "n" )
//! ```

/// Name of a sample line, and the text after it. `None` for comments and empty lines.
pub fn name(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let line = line.trim_ascii();
    if line.first().is_none_or(|&byte| byte == b'#') {
        return None;
    }
    let end = line
        .iter()
        .position(|byte| matches!(byte, b'{' | b' ' | b'\t'))
        .unwrap_or(line.len());
    line.split_at_checked(end)
}

/// Calls `each` with every label's name and its value as written, and gives the text after the
/// braces. `None` when the braces are broken.
pub fn labels<'a>(rest: &'a [u8], mut each: impl FnMut(&'a [u8], &'a [u8])) -> Option<&'a [u8]> {
    let Some(mut rest) = rest.trim_ascii_start().strip_prefix(b"{") else {
        return Some(rest);
    };
    loop {
        rest = rest.trim_ascii_start();
        if let Some(after) = rest.strip_prefix(b"}") {
            return Some(after);
        }
        let equals = rest.iter().position(|&byte| byte == b'=')?;
        let (name, after) = rest.split_at_checked(equals)?;
        let (value, after) = quoted(after.get(1..)?.trim_ascii_start())?;
        each(name.trim_ascii(), value);
        rest = after.trim_ascii_start();
        match rest.split_first()? {
            (b',', after) => rest = after,
            (b'}', _) => {}
            _ => return None,
        }
    }
}

/// The text between two quotes, as written, and the text after it.
fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = text.strip_prefix(b"\"")?;
    let mut escaped = false;
    let end = text.iter().position(|&byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })?;
    let (value, after) = text.split_at_checked(end)?;
    Some((value, after.get(1..)?))
}

/// The value after the labels; NaN when there is none, or something else than a timestamp or an
/// exemplar follows it.
pub fn value(rest: &[u8]) -> f64 {
    let mut words = rest.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let value = words.next().map_or(f64::NAN, number);
    match words.next() {
        Some(word) if word.first() != Some(&b'#') && number(word).is_nan() => f64::NAN,
        _ => value,
    }
}

/// A number; NaN when it is none.
pub fn number(text: &[u8]) -> f64 {
    core::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(f64::NAN)
}

/// A label value without its escapes. Bytes that are no UTF-8 become the replacement character.
pub fn unescape(value: &[u8]) -> String {
    let mut out = Vec::with_capacity(value.len());
    let mut bytes = value.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        let plain = match (byte, bytes.peek()) {
            (b'\\', Some(b'n')) => Some(b'\n'),
            (b'\\', Some(&next @ (b'\\' | b'"'))) => Some(next),
            _ => None,
        };
        if plain.is_some() {
            bytes.next();
        }
        out.push(plain.unwrap_or(byte));
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[track_caller]
    fn check(line: &str, labels_wanted: Option<&[(&str, &str)]>, value_wanted: f64) {
        let (_, rest) = name(line.as_bytes()).unwrap();
        let mut seen = Vec::new();
        let after = labels(rest, |name, value| {
            seen.push((
                String::from_utf8_lossy(name).into_owned(),
                String::from_utf8_lossy(value).into_owned(),
            ));
        });
        let Some(wanted) = labels_wanted else {
            assert_eq!(after, None);
            return;
        };
        let wanted: Vec<_> = wanted.iter().map(|&(n, v)| (n.to_owned(), v.to_owned())).collect();
        assert_eq!(seen, wanted);
        let got = value(after.unwrap());
        assert!(got == value_wanted || (got.is_nan() && value_wanted.is_nan()), "{got}");
    }

    #[test]
    fn the_forms_of_a_line_are_read() {
        check("a 1", Some(&[]), 1.0);
        check("\ta\t1\r", Some(&[]), 1.0);
        check("a{} 5.0", Some(&[]), 5.0);
        check("a { x = \"1\" , } 2e+03", Some(&[("x", "1")]), 2000.0);
        check(
            r#"a{x="}=,{",y="q\"\\"}3"#,
            Some(&[("x", "}=,{"), ("y", r#"q\"\\"#)]),
            3.0,
        );
        check("a{x=\"1\"} 4 1700000000000", Some(&[("x", "1")]), 4.0);
        check("a 4 # {trace=\"t\"} 0.5 1.7", Some(&[]), 4.0);
        check("a 4 1.7 # {trace=\"t\"} 0.5", Some(&[]), 4.0);
        check("a +Inf", Some(&[]), f64::INFINITY);
    }

    #[test]
    fn a_broken_line_has_no_value() {
        check("a", Some(&[]), f64::NAN);
        check("a{x=\"1\"}", Some(&[("x", "1")]), f64::NAN);
        check("a 1 2x", Some(&[]), f64::NAN);
        check("a one", Some(&[]), f64::NAN);
        check("a{x=\"1} 1", None, 0.0);
        check("a{x=1} 1", None, 0.0);
        check("a{x=\"1\" y=\"2\"} 1", None, 0.0);
        check("a{", None, 0.0);
    }

    #[test]
    fn comments_and_blank_lines_have_no_name() {
        assert_eq!(name(b""), None);
        assert_eq!(name(b" \r"), None);
        assert_eq!(name(b"  # HELP a b"), None);
    }

    #[test]
    fn escapes_are_undone_once_and_unknown_ones_stay() {
        assert_eq!(unescape(br#"a\\n\n\"\t\"#), "a\\n\n\"\\t\\");
        assert_eq!(unescape(b"\xff"), "\u{fffd}");
    }
}
