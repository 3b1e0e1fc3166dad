//! What holds for every page.

use proptest::prelude::*;

use super::*;

fn lines() -> impl Strategy<Value = Vec<String>> {
    let pages: Vec<Vec<String>> = fixtures::texts()
        .chain(captures::VLLM)
        .map(|text| text.lines().map(str::to_owned).collect())
        .filter(|lines: &Vec<String>| lines.iter().any(|line| line.contains(' ')))
        .collect();
    prop::sample::select(pages)
}

fn joined(lines: &[String]) -> String {
    lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
}

proptest! {
    #[test]
    fn garbage_never_panics(page in prop::collection::vec(any::<u8>(), 0..512)) {
        let _ = read(&page, Hints::default());
    }

    #[test]
    fn near_garbage_never_panics(text in "(vllm:(num_requests_running|lora_requests_info|cache_config_info|lora_adapter_loaded)[{} =\",\\\\a-z0-9#\n.]{0,40}\n){0,6}") {
        let _ = read(text.as_bytes(), Hints { now: UnixMillis(1), ..Hints::default() });
    }

    #[test]
    fn changed_bytes_never_panic(lines in lines(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut page = joined(&lines).into_bytes();
        let at = at.index(page.len());
        page[at] = byte;
        let _ = read(&page, Hints::default());
    }

    #[test]
    fn the_order_of_lines_does_not_matter(
        (lines, shuffled) in lines().prop_flat_map(|lines| (Just(lines.clone()), Just(lines).prop_shuffle())),
        now in prop::sample::select(vec![0, 1_796_022_800_000, 900_000_000_000]),
    ) {
        let hints = Hints { now: UnixMillis(now), ..Hints::default() };
        // The first byte tells text from JSON.
        let first = "# a page\n";
        let read = |lines: &[String]| read([first, &joined(lines)].concat().as_bytes(), hints);
        prop_assert_eq!(read(&lines), read(&shuffled));
    }

    #[test]
    fn a_page_cut_inside_a_line_is_rejected(lines in lines(), at in any::<prop::sample::Index>()) {
        let page = joined(&lines);
        let page = page.trim_start().as_bytes();
        let end = at.index(page.len()) + 1;
        let cut = &page[..end];
        let whole = cut.rsplit(|&byte| byte == b'\n').next().unwrap().trim_ascii();
        prop_assume!(!whole.is_empty() && whole != b"# EOF" && !matches!(cut[0], b'[' | b'{'));
        prop_assert_eq!(read(cut, Hints::default()).status, Status::Reject);
    }

    #[test]
    fn unknown_families_change_nothing(
        lines in lines(),
        name in "[a-f_][a-z_:]{0,12}",
        more in prop::sample::select(vec![" 1", "{} 2", "{engine=\"0\",instance=\"x\"} NaN", "{x=\"1", "", "{le=\"+Inf\"} 3 4 # {} 1"]),
        at in any::<prop::sample::Index>(),
    ) {
        let mut with = lines.clone();
        with.insert(at.index(lines.len() + 1), format!("{name}{more}"));
        let read = |lines: &[String]| read(["# a page\n", &joined(lines)].concat().as_bytes(), Hints::default());
        prop_assert_eq!(read(&lines), read(&with));
    }
}
