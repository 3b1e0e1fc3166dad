//! Numbers as Python's `prometheus_client` prints them: the shortest digits that read back the same, an exponent from
//! seven digits before the point on.

/// The text of a value.
pub(super) fn number(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    if value != 0.0 && (value.abs() < 1e-4 || value.abs() >= 1e16) {
        return scientific(value);
    }
    let plain = format!("{value:?}");
    match plain.split_once('.') {
        Some((whole, fraction)) if value > 0.0 && whole.len() > 6 => {
            let (first, rest) = whole.split_at(1);
            let digits = format!("{first}.{rest}{fraction}");
            // Zeros and then the point are dropped, and the exponent has a literal 0 in front of it.
            format!("{}e+0{}", digits.trim_end_matches(['0', '.']), whole.len() - 1)
        }
        _ => plain,
    }
}

/// Python's form: at least two digits of exponent, always a sign.
fn scientific(value: f64) -> String {
    let text = format!("{value:e}");
    let Some((mantissa, exponent)) = text.split_once('e') else {
        return text;
    };
    match exponent.strip_prefix('-') {
        Some(digits) => format!("{mantissa}e-{digits:0>2}"),
        None => format!("{mantissa}e+{exponent:0>2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[track_caller]
    fn check(value: f64, text: &str) {
        assert_eq!(number(value), text);
    }

    #[test]
    fn forms_of_numbers() {
        check(0.0, "0.0");
        check(-1.0, "-1.0");
        check(999_999.0, "999999.0");
        check(1_000_000.0, "1e+06");
        check(1_234_567.5, "1.2345675e+06");
        check(12_345_678_901.0, "1.2345678901e+010");
        check(0.000_1, "0.0001");
        check(0.000_05, "5e-05");
        check(1e17, "1e+17");
        check(f64::INFINITY, "+Inf");
        check(f64::NEG_INFINITY, "-Inf");
        check(f64::NAN, "NaN");
    }

    #[test]
    fn every_recorded_number_keeps_its_form() {
        let pages = [
            include_str!("../../../fixtures/captures/vllm-metrics-idle.txt"),
            include_str!("../../../fixtures/captures/vllm-metrics-kvfull.txt"),
            include_str!("../../../fixtures/captures/vllm-metrics-idle-after.txt"),
        ];
        let samples = pages
            .iter()
            .flat_map(|page| page.lines())
            .filter(|line| !line.starts_with('#'));
        let mut seen = 0;
        for text in samples.filter_map(|line| line.rsplit_once(' ')).map(|(_, text)| text) {
            check(text.parse().expect("a number"), text);
            seen += 1;
        }
        assert!(seen > 1000, "{seen}");
    }
}
