//! Steering inputs: what a request may say about where it goes, if its sender is trusted.

use berth_shared_state::config::Trust;
use berth_shared_state::names::{COOKIE_PREFIX, ENDPOINT_SUBSET, MODEL_NAME, SESSION};

use crate::limits::COOKIES_MAX_BYTES;

/// What trusted headers say. Nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steering {
    /// Only these pods: present but empty allows none.
    pub subset: Option<String>,
    /// The model, for a body that does not tell it.
    pub model: Option<String>,
    /// The session.
    pub session: Option<String>,
    /// The pool, by its place in the config: the proxy's own route leads there.
    pub pool: Option<usize>,
    /// Cookies that Berth may have set. They are sealed, so whoever sends them need not be trusted.
    pub cookies: String,
    /// The client reaches the proxy by https: its cookies need not go another way.
    pub secure: bool,
}

impl Steering {
    /// Takes the headers that `trust` names; an untrusted copy says nothing. A header that occurs
    /// several times is joined as HTTP does.
    pub fn from_headers<'a>(trust: &Trust, headers: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        let mut steering = Self::default();
        for (name, value) in headers {
            let Some(name) = trust.headers.iter().find(|trusted| trusted.eq_ignore_ascii_case(name)) else {
                continue;
            };
            let value = String::from_utf8_lossy(value);
            match name.as_str() {
                ENDPOINT_SUBSET => match &mut steering.subset {
                    Some(all) => {
                        all.push(',');
                        all.push_str(&value);
                    }
                    None => steering.subset = Some(value.into_owned()),
                },
                SESSION if !value.trim().is_empty() => steering.session = Some(value.trim().to_owned()),
                MODEL_NAME if !value.trim().is_empty() => steering.model = Some(value.trim().to_owned()),
                _ => {}
            }
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
