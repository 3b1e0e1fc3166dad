//! Steering inputs: what a request may say about where it goes, if its sender is trusted.

use berth_shared_state::config::Trust;
use berth_shared_state::names::{
    COOKIE_PREFIX, ENDPOINT_SUBSET, FAIRNESS_ID, MODEL_NAME, OBJECTIVE, REQUEST_TIMEOUT_MS, SESSION,
};
use berth_shared_state::units::Millis;
use xxhash_rust::xxh64::xxh64;

use super::TOO_LONG;
use crate::limits::{COOKIES_MAX_BYTES, KEPT_MAX_BYTES};

/// What trusted headers say. Nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steering {
    /// Only these pods: present but empty allows none.
    pub subset: Option<String>,
    /// The model, for a body that does not tell it.
    pub model: Option<String>,
    /// The session.
    pub session: Option<String>,
    /// The objective, whether the config knows it or not.
    pub objective: Option<String>,
    /// The tenant.
    pub flow: Option<String>,
    /// How long the client waits for the whole answer.
    pub timeout: Option<Millis>,
    /// The pool, by its place in the config: the proxy's own route leads there.
    pub pool: Option<usize>,
    /// Cookies that Berth may have set. They are sealed, so whoever sends them need not be trusted.
    pub cookies: String,
    /// The client reaches the proxy by https: its cookies need not go another way.
    pub secure: bool,
}

impl Steering {
    /// Takes the headers that `trust` names; an untrusted copy says nothing. A subset that occurs
    /// several times is joined as HTTP does.
    pub fn from_headers<'a>(trust: &Trust, headers: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        let mut steering = Self::default();
        for (name, value) in headers {
            let Some(name) = trust.headers.iter().find(|trusted| trusted.eq_ignore_ascii_case(name)) else {
                continue;
            };
            steering.take(name, &String::from_utf8_lossy(value));
        }
        steering
    }

    /// Takes the cookies that Berth may have set.
    pub fn take_cookies<'a>(&mut self, headers: impl IntoIterator<Item = (&'a str, &'a [u8])>) {
        for (name, value) in headers {
            let text = core::str::from_utf8(value).unwrap_or_default();
            match name {
                ":scheme" => self.secure = text == "https",
                "cookie" => {
                    let own = text
                        .split(';')
                        .map(str::trim)
                        .filter(|cookie| cookie.starts_with(COOKIE_PREFIX));
                    for cookie in own {
                        if self.cookies.len() + cookie.len() < COOKIES_MAX_BYTES {
                            self.cookies.extend([cookie, ";"]);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// What filters before this one told, by the name of the input, in place of what headers say of it. What is no
    /// text says nothing: neither bytes that are no UTF-8, nor any with control bytes, which whole numbers have.
    #[must_use]
    pub fn told<'a>(mut self, inputs: impl IntoIterator<Item = (&'a str, Vec<u8>)>) -> Self {
        for (name, value) in inputs {
            let text = String::from_utf8(value).ok();
            if let Some(value) = text.filter(|text| !text.chars().any(char::is_control)) {
                if name == ENDPOINT_SUBSET {
                    self.subset = None;
                }
                self.take(name, &value);
            }
        }
        self
    }

    /// What deciding anew takes of it, in this pool: its class is known, and other pools' cookies say nothing here.
    pub(super) fn to_wait(&self, pool: &str) -> Self {
        let own = |cookie: &&str| {
            let name = cookie.split_once('=').map(|(name, _)| name);
            name.and_then(|name| name.strip_prefix(COOKIE_PREFIX)) == Some(pool)
        };
        let cookie = self.cookies.split(';').map(str::trim).find(own);
        Self {
            subset: self.subset.clone(),
            model: self.model.clone(),
            session: self.session.clone(),
            pool: self.pool,
            cookies: cookie.unwrap_or_default().to_owned(),
            secure: self.secure,
            ..Self::default()
        }
    }

    /// Bytes of memory that it takes.
    pub(super) fn memory(&self) -> usize {
        let texts = [&self.subset, &self.model, &self.session, &self.objective, &self.flow];
        let texts: usize = texts.into_iter().flatten().map(String::len).sum();
        size_of::<Self>() + texts + self.cookies.len()
    }

    fn take(&mut self, name: &str, value: &str) {
        let text = value.trim();
        // The first of a header and its alias counts.
        let first = |known: &Option<String>, aliases: [&str; 2]| {
            aliases.contains(&name) && !text.is_empty() && (known.is_none() || name == aliases[0])
        };
        match name {
            ENDPOINT_SUBSET => match &mut self.subset {
                Some(all) => {
                    all.push(',');
                    all.push_str(value);
                }
                None => self.subset = Some(value.to_owned()),
            },
            _ if first(&self.objective, OBJECTIVE) => self.objective = Some(named(text)),
            _ if first(&self.flow, FAIRNESS_ID) => self.flow = Some(named(text)),
            REQUEST_TIMEOUT_MS => self.timeout = text.parse().ok().map(Millis).or(self.timeout),
            SESSION if !text.is_empty() => self.session = Some(named(text)),
            MODEL_NAME if text.len() > KEPT_MAX_BYTES => self.model = Some(TOO_LONG.to_owned()),
            MODEL_NAME if !text.is_empty() => self.model = Some(text.to_owned()),
            _ => {}
        }
    }
}

/// A name of a sender's own choice. It only has to tell one from another, so a hash stands for a long one.
fn named(text: &str) -> String {
    if text.len() > KEPT_MAX_BYTES {
        format!("{:016x}", xxh64(text.as_bytes(), 0))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
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
    fn check_admission(
        trusted: &[&str],
        headers: &[(&str, &str)],
        expected: (Option<&str>, Option<&str>, Option<u64>),
    ) {
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
}
