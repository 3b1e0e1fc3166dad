use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

#[track_caller]
fn check(trusted: &[&str], headers: &[(&str, &str)], subset: Option<&str>, model: Option<&str>) {
    let trust = Trust {
        headers: trusted.iter().map(|name| (*name).to_owned()).collect(),
        filters: Vec::new(),
    };
    let bytes = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
    let steering = Steering::from_headers(&trust, bytes);
    assert_eq!((steering.subset.as_deref(), steering.model.as_deref()), (subset, model));
}

#[test]
fn only_trusted_headers_steer() {
    let headers = [(ENDPOINT_SUBSET, "10.0.0.1:80"), (MODEL_NAME, "m")];
    check(&[], &headers, None, None);
    check(&[MODEL_NAME], &headers, None, Some("m"));
    check(&[MODEL_NAME, ENDPOINT_SUBSET], &headers, Some("10.0.0.1:80"), Some("m"));
}

#[track_caller]
fn check_admission(trusted: &[&str], headers: &[(&str, &str)], expected: (Option<&str>, Option<&str>, Option<u64>)) {
    let trust = Trust {
        headers: trusted.iter().map(|name| (*name).to_owned()).collect(),
        filters: Vec::new(),
    };
    let bytes = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
    let steering = Steering::from_headers(&trust, bytes);
    let found = (
        steering.objective.as_deref(),
        steering.flow.as_deref(),
        steering.timeout.map(|timeout| timeout.0),
    );
    assert_eq!(found, expected);
}

#[test]
fn objective_tenant_and_timeout_are_believed_as_all_else_is() {
    let headers = [
        (OBJECTIVE[0], "chat"),
        (FAIRNESS_ID[0], "t1"),
        (REQUEST_TIMEOUT_MS, "700"),
    ];
    check_admission(&[], &headers, (None, None, None));
    let all = [
        OBJECTIVE[0],
        OBJECTIVE[1],
        FAIRNESS_ID[0],
        FAIRNESS_ID[1],
        REQUEST_TIMEOUT_MS,
    ];
    check_admission(&all, &headers, (Some("chat"), Some("t1"), Some(700)));
    check_admission(
        &all,
        &[(REQUEST_TIMEOUT_MS, "soon"), (OBJECTIVE[0], " ")],
        (None, None, None),
    );
}

#[test]
fn an_alias_says_the_same_unless_both_are_there() {
    let all = [OBJECTIVE[0], OBJECTIVE[1], FAIRNESS_ID[0], FAIRNESS_ID[1]];
    check_admission(&all, &[(OBJECTIVE[1], "batch")], (Some("batch"), None, None));
    let both = [
        (OBJECTIVE[1], "batch"),
        (OBJECTIVE[0], "chat"),
        (FAIRNESS_ID[0], "t1"),
        (FAIRNESS_ID[1], "t2"),
    ];
    check_admission(&all, &both, (Some("chat"), Some("t1"), None));
    check_admission(&all[1..2], &both, (Some("batch"), None, None));
}

#[test]
fn what_a_filter_told_stands_in_place_of_a_header() {
    #[track_caller]
    fn check(told: &[(&str, &[u8])], subset: Option<&str>, flow: Option<&str>) {
        let steering = Steering {
            subset: Some("a".to_owned()),
            flow: Some("t1".to_owned()),
            ..Steering::default()
        };
        let told = steering.told(told.iter().map(|(name, value)| (*name, value.to_vec())));
        assert_eq!((told.subset.as_deref(), told.flow.as_deref()), (subset, flow));
    }
    check(&[], Some("a"), Some("t1"));
    check(
        &[(ENDPOINT_SUBSET, b"b"), (FAIRNESS_ID[0], b"t2")],
        Some("b"),
        Some("t2"),
    );
    check(&[(ENDPOINT_SUBSET, b"")], Some(""), Some("t1"));
    // Nobody's name.
    check(&[(FAIRNESS_ID[0], b" ")], Some("a"), Some("t1"));
    // Numbers, as Envoy gives them: 5, 7 and 42 are UTF-8, and so is a `false`.
    for number in [0.0, 0.7, 1.0, 5.0, 7.0, 42.0, -3.0, 65_536.0, 1_234_567_890.0] {
        let bytes = f64::to_le_bytes(number);
        check(
            &[(FAIRNESS_ID[0], &bytes), (ENDPOINT_SUBSET, &bytes)],
            Some("a"),
            Some("t1"),
        );
    }
    check(
        &[(FAIRNESS_ID[0], &[0]), (ENDPOINT_SUBSET, &[1])],
        Some("a"),
        Some("t1"),
    );
    check(&[(FAIRNESS_ID[0], "t\u{e9}\u{7f}".as_bytes())], Some("a"), Some("t1"));
    check(&[(FAIRNESS_ID[0], "t\u{e9}".as_bytes())], Some("a"), Some("t\u{e9}"));
}

#[test]
fn a_name_is_bounded_and_long_ones_are_still_told_apart() {
    let trust = Trust {
        headers: [SESSION, FAIRNESS_ID[0], OBJECTIVE[0], MODEL_NAME]
            .map(str::to_owned)
            .into(),
        filters: Vec::new(),
    };
    let read = |value: &str| {
        let headers = trust.headers.iter().map(|name| (name.as_str(), value.as_bytes()));
        Steering::from_headers(&trust, headers)
    };
    let names = |steering: Steering| [steering.session, steering.flow, steering.objective].map(Option::unwrap);
    let longest = "x".repeat(KEPT_MAX_BYTES);
    let one = read(&longest);
    assert_eq!(one.model.as_ref(), Some(&longest));
    assert!(names(one).iter().all(|name| *name == longest));
    let (one, other) = (read(&(longest.clone() + "a")), read(&(longest + "b")));
    assert_eq!(
        (one.model.as_deref(), other.model.as_deref()),
        (Some(TOO_LONG), Some(TOO_LONG))
    );
    assert!(one.memory() < size_of::<Steering>() + 4 * KEPT_MAX_BYTES);
    for (one, other) in names(one).iter().zip(names(other)) {
        assert!(*one != other && one.len() == 16, "{one}");
    }
}

#[test]
fn what_waits_keeps_what_decides_anew_and_no_more() {
    let steering = Steering {
        subset: Some("10.0.0.1:80".to_owned()),
        model: Some("m".to_owned()),
        session: Some("s".to_owned()),
        objective: Some("chat".to_owned()),
        flow: Some("t".to_owned()),
        timeout: Some(Millis(5)),
        pool: Some(1),
        cookies: "berth-ab=1;berth-a=2;berth-b=3;".to_owned(),
        secure: true,
    };
    let kept = Steering {
        objective: None,
        flow: None,
        timeout: None,
        cookies: "berth-a=2".to_owned(),
        ..steering.clone()
    };
    assert_eq!(steering.to_wait("a"), kept);
    assert_eq!(kept.memory(), size_of::<Steering>() + 11 + 1 + 1 + 9);
    assert_eq!(steering.to_wait("c").cookies, "");
}

#[test]
fn cookies_of_others_are_left_alone() {
    #[track_caller]
    fn check(headers: &[(&str, &str)], cookies: &str, secure: bool) {
        let mut steering = Steering::default();
        steering.take_cookies(headers.iter().map(|(name, value)| (*name, value.as_bytes())));
        assert_eq!((steering.cookies.as_str(), steering.secure), (cookies, secure));
    }
    check(
        &[("cookie", "a=b; berth-x=1;berth-y=2 ; c=berth-z")],
        "berth-x=1;berth-y=2;",
        false,
    );
    check(
        &[("cookie", "berth-x=1"), (":scheme", "https"), ("cookie", "berth-y=2")],
        "berth-x=1;berth-y=2;",
        true,
    );
    check(&[("x-cookie", "berth-x=1"), (":scheme", "http")], "", false);
    let fits = format!("berth-{}", "x".repeat(COOKIES_MAX_BYTES - 7));
    check(&[("cookie", &fits)], &format!("{fits};"), false);
    check(&[("cookie", &format!("{fits}x; berth-y=2"))], "berth-y=2;", false);
}

#[test]
fn an_empty_subset_is_a_subset_and_an_empty_model_is_none() {
    check(
        &[MODEL_NAME, ENDPOINT_SUBSET],
        &[(ENDPOINT_SUBSET, ""), (MODEL_NAME, " ")],
        Some(""),
        None,
    );
}

#[test]
fn names_have_no_case_and_repeated_headers_are_one_list() {
    let headers = [("X-Gateway-Destination-Endpoint-Subset", "a"), (ENDPOINT_SUBSET, "b")];
    check(&[ENDPOINT_SUBSET], &headers, Some("a,b"), None);
}
