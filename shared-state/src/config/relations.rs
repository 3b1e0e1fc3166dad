//! Rules between two options. They look at what the walk could read and skip what it could not, so
//! that they add to its errors instead of hiding behind them.

use core::hash::Hash;
use core::net::SocketAddr;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::check::{Checked, Is, Record, Report, identity};
use super::values::duration_text;
use crate::limits::STALE_AFTER_INTERVALS_MIN;
use crate::names::{OBJECTIVE, POOL, SESSION};
use crate::units::Millis;

/// Checks the document.
pub(super) fn check(document: &Record, report: &mut Report) {
    rewrites(document, report);
    hand_over(document, report);
    filters(document, report);
    admission(document, report);
    let Some(Is::List(pools)) = is(document, "pools") else {
        return;
    };
    budget(document, pools.len(), report);
    let mut seen = Seen::default();
    for (index, pool) in pools.iter().enumerate() {
        let Is::Record(pool) = &pool.is else { continue };
        name(index, pool, &mut seen, report);
        models(index, pool, &mut seen, report);
        routes(index, pool, &mut seen, report);
        routes_of_envoy(index, document, pool, report);
        staleness(index, pool, report);
        affinity(index, document, pool, report);
        let Some(Is::Record(discovery)) = is(pool, "discovery") else {
            continue;
        };
        addresses(index, discovery, &mut seen, report);
        envoy(index, document, discovery, &mut seen, report);
        unread(index, document, discovery, report);
        lists(index, discovery, &mut seen, report);
    }
}

/// Where things stood that may stand once.
#[derive(Default)]
struct Seen<'a> {
    names: HashMap<&'a str, usize>,
    models: HashMap<&'a str, usize>,
    routes: HashMap<&'a str, usize>,
    addresses: HashMap<SocketAddr, (usize, usize)>,
    clusters: HashMap<(&'a str, &'a str), usize>,
    lists: HashMap<Vec<&'a str>, usize>,
}

/// Where this stood before; if it did not, it stands here.
fn earlier<K: Eq + Hash, P: Copy>(seen: &mut HashMap<K, P>, key: K, here: P) -> Option<P> {
    match seen.entry(key) {
        Entry::Occupied(first) => Some(*first.get()),
        Entry::Vacant(free) => {
            free.insert(here);
            None
        }
    }
}

fn is<'a>(record: &'a Record, key: &str) -> Option<&'a Is> {
    record.find(key).map(|checked| &checked.is)
}

fn below<'a>(record: &'a Record, section: &str, key: &str) -> Option<&'a Checked> {
    match is(record, section)? {
        Is::Record(inner) => inner.find(key),
        _ => None,
    }
}

/// The mode of the body, where a later filter holds it.
fn hands_over(document: &Record) -> Option<&Checked> {
    below(document, "body", "mode").filter(|mode| matches!(&mode.is, Is::Word(word) if word == "hand-over"))
}

fn hand_over(document: &Record, report: &mut Report) {
    let Some(mode) = hands_over(document) else { return };
    let mut refuse = |rule: String| report.add(mode.at, "body.mode".to_owned(), "\"hand-over\"".to_owned(), rule);
    if let Some(host) = other_host(document) {
        refuse(format!(
            "must be \"hold\" under the host {host}: only Envoy has a filter to hand over to"
        ));
    }
    if matches!(is(document, "rewrites"), Some(Is::List(rules)) if !rules.is_empty()) {
        refuse("must be \"hold\" where there are rewrites: a body that was let by cannot be changed".to_owned());
    }
    if matches!(is(document, "pools"), Some(Is::List(pools)) if pools.len() > 1) {
        refuse(format!(
            "must be \"hold\" where there are several pools: routes lead by {POOL}, and the headers went by before the pool is known; write one config per pool and route"
        ));
    }
}

/// The host, where it is named and is not Envoy.
fn other_host(document: &Record) -> Option<&str> {
    match is(document, "host") {
        Some(Is::Word(host)) if !["auto", "envoy"].contains(&host.as_str()) => Some(host),
        _ => None,
    }
}

fn name<'a>(index: usize, pool: &'a Record, seen: &mut Seen<'a>, report: &mut Report) {
    let Some(checked) = pool.find("name") else { return };
    let Is::Word(name) = &checked.is else { return };
    if let Some(first) = earlier(&mut seen.names, name.as_str(), index) {
        let rule = format!("must differ from the name of every other pool; pools[{first}] has it too");
        report.add(checked.at, format!("pools[{index}].name"), format!("{name:?}"), rule);
    }
}

/// A name that two pools claim goes to the first, so the second claim is a mistake.
fn models<'a>(index: usize, pool: &'a Record, seen: &mut Seen<'a>, report: &mut Report) {
    let named = words(pool, "models", "").map(|(place, at, name)| (format!("models[{place}]"), at, name));
    let adapters = pool.find("adapters").map(|checked| &checked.is);
    let known = match adapters {
        Some(Is::Record(adapters)) => Some(words(adapters, "known", "name")),
        _ => None,
    };
    let known = known.into_iter().flatten();
    let known = known.map(|(place, at, name)| (format!("adapters.known[{place}].name"), at, name));
    for (path, at, name) in named.chain(known) {
        let first = earlier(&mut seen.models, name, index);
        // Twice in one list is an error of that list.
        if let Some(first) = first.filter(|first| *first != index || !path.starts_with("models")) {
            let rule = format!("must stand once; pools[{first}] has it too, and would get all of its requests");
            report.add(at, format!("pools[{index}].{path}"), format!("{name:?}"), rule);
        }
    }
}

fn routes<'a>(index: usize, pool: &'a Record, seen: &mut Seen<'a>, report: &mut Report) {
    for (place, at, route) in words(pool, "routes", "") {
        let first = earlier(&mut seen.routes, route, index);
        // Twice in one list is an error of that list.
        if let Some(first) = first.filter(|first| *first != index) {
            let path = format!("pools[{index}].routes[{place}]");
            let rule = format!("must lead to one pool only; pools[{first}] has it too");
            report.add(at, path, format!("{route:?}"), rule);
        }
    }
}

/// Words of a list, or of one key of each of its records: place in the list, place in the document, word.
fn words<'a>(record: &'a Record, list: &str, key: &'static str) -> impl Iterator<Item = (usize, usize, &'a str)> {
    let items = match is(record, list) {
        Some(Is::List(items)) => items.as_slice(),
        _ => &[],
    };
    items.iter().enumerate().filter_map(move |(place, item)| {
        let word = match &item.is {
            Is::Record(record) => record.find(key)?,
            _ => item,
        };
        match &word.is {
            Is::Word(text) => Some((place, word.at, text.as_str())),
            _ => None,
        }
    })
}

fn rewrites(document: &Record, report: &mut Report) {
    let Some(Is::List(rules)) = is(document, "rewrites") else {
        return;
    };
    if let (Some(Is::Word(host)), Some(first)) = (is(document, "host"), rules.first())
        && host == "apisix"
    {
        let rule = "must be empty under the host apisix: there a filter cannot write bodies".to_owned();
        report.add(first.at, "rewrites".to_owned(), "[...]".to_owned(), rule);
    }
    let mut froms = HashMap::new();
    for (index, at, from) in words(document, "rewrites", "from") {
        if let Some(first) = earlier(&mut froms, from, index) {
            let rule = format!("never applies: rewrites[{first}] has the same name");
            report.add(at, format!("rewrites[{index}].from"), format!("{from:?}"), rule);
        }
    }
    for (index, rule) in rules.iter().enumerate() {
        if let Is::Record(rule) = &rule.is {
            weights(index, rule, report);
            sticky(index, rule, document, report);
        }
    }
}

/// All or none: nobody could say what the part of the others is.
fn weights(index: usize, rule: &Record, report: &mut Report) {
    let Some(Is::List(targets)) = is(rule, "to") else {
        return;
    };
    let weight = |target: &Checked| match &target.is {
        Is::Record(target) => target
            .find("weight")
            .map(|weight| (weight.at, matches!(weight.is, Is::Unset))),
        _ => None,
    };
    let some = targets.iter().filter_map(weight).any(|(_, unset)| !unset);
    for (place, target) in targets.iter().enumerate() {
        if let (true, Some((at, true))) = (some, weight(target)) {
            let rule = "must be there, since another target of this rewrite has one: all or none".to_owned();
            report.add(
                at,
                format!("rewrites[{index}].to[{place}].weight"),
                "absent".to_owned(),
                rule,
            );
        }
    }
}

/// A queue needs a host that lets a request go outside of its own callbacks, and objectives a header that is believed.
fn admission(document: &Record, report: &mut Report) {
    let Some(Is::Record(admission)) = is(document, "admission") else {
        return;
    };
    if let Some(enabled) = below(admission, "queue", "enabled").filter(|enabled| matches!(enabled.is, Is::Bool(true))) {
        let mut refuse = |rule: String| {
            report.add(
                enabled.at,
                "admission.queue.enabled".to_owned(),
                "true".to_owned(),
                rule,
            )
        };
        if let Some(host) = other_host(document) {
            refuse(format!(
                "must be false under the host {host}: it cannot let a held request go later"
            ));
        }
        if hands_over(document).is_some() {
            refuse(
                "must be false with body.mode \"hand-over\": a later filter holds the request, and lets it go once"
                    .to_owned(),
            );
        }
    }
    let mut names = HashMap::new();
    for (index, at, name) in words(admission, "objectives", "name") {
        if let Some(first) = earlier(&mut names, name, index) {
            let rule = format!("must differ from the name of every other objective; objectives[{first}] has it too");
            report.add(
                at,
                format!("admission.objectives[{index}].name"),
                format!("{name:?}"),
                rule,
            );
        }
    }
    let objectives = admission.find("objectives").filter(|_| !names.is_empty());
    if let (Some(rule), Some(first)) = (unbelieved(document, &OBJECTIVE), objectives) {
        report.add(first.at, "admission.objectives".to_owned(), "[...]".to_owned(), rule);
    }
}

/// The rule that is broken where a steering input is believed under none of these names, from anywhere.
fn unbelieved(document: &Record, names: &[&str]) -> Option<String> {
    if let Some(Is::Record(trust)) = is(document, "trust") {
        let mut told = words(trust, "headers", "").chain(words(trust, "filters", "input"));
        if told.any(|(_, _, name)| names.contains(&name)) {
            return None;
        }
    }
    Some(format!(
        "needs {} in trust: an untrusted copy is removed",
        names.join(" or ")
    ))
}

/// Filters leave things for later ones in Envoy alone, and one of them tells each.
fn filters(document: &Record, report: &mut Report) {
    let Some(Is::Record(trust)) = is(document, "trust") else {
        return;
    };
    let mut seen = HashMap::new();
    for (index, at, input) in words(trust, "filters", "input") {
        let rule = if let Some(first) = earlier(&mut seen, input, index) {
            format!("must differ from every other one; filters[{first}] is it, too")
        } else if let Some(host) = other_host(document) {
            format!("must not be there under the host {host}: only Envoy's filters leave metadata and filter state")
        } else {
            continue;
        };
        report.add(at, format!("trust.filters[{index}].input"), format!("{input:?}"), rule);
    }
}

fn sticky(index: usize, rule: &Record, document: &Record, report: &mut Report) {
    let Some(checked) = rule.find("sticky") else { return };
    let by_session = matches!(&checked.is, Is::Word(word) if word == "session");
    if let Some(rule) = unbelieved(document, &[SESSION]).filter(|_| by_session) {
        report.add(
            checked.at,
            format!("rewrites[{index}].sticky"),
            "\"session\"".to_owned(),
            rule,
        );
    }
}

fn affinity(index: usize, document: &Record, pool: &Record, report: &mut Report) {
    let Some(Is::Record(routing)) = is(pool, "routing") else {
        return;
    };
    let (Some(by), Some(key)) = (below(routing, "affinity", "by"), below(routing, "affinity", "key")) else {
        return;
    };
    let Is::Word(word) = &by.is else { return };
    let path = format!("pools[{index}].routing.affinity");
    let mut refuse = |rule: String| report.add(by.at, format!("{path}.by"), format!("{word:?}"), rule);
    if let Some(rule) = unbelieved(document, &[SESSION]).filter(|_| word == "session") {
        refuse(rule);
    }
    // A worker of APISIX keeps the index in its own memory.
    if let Some(host) = other_host(document).filter(|host| word == "session" && *host != "apisix") {
        refuse(format!(
            "must not be \"session\" under the host {host}: its memory is part of the prefix index, which is off there; \"cookie\" needs none"
        ));
    }
    match (word.as_str(), &key.is) {
        ("cookie", Is::Unset) => {
            refuse("needs `key`: an unsealed cookie would let clients choose their pod".to_owned())
        }
        ("none" | "session", Is::Record(_)) => {
            let rule = "has no effect: only a cookie is sealed; set `by` to \"cookie\", or leave it out".to_owned();
            report.add(key.at, format!("{path}.key"), "{...}".to_owned(), rule);
        }
        _ => {}
    }
}

fn staleness(index: usize, pool: &Record, report: &mut Report) {
    let (Some(stale), Some(interval)) = (below(pool, "routing", "stale_after"), below(pool, "scrape", "interval"))
    else {
        return;
    };
    let (Is::Number(found), Is::Number(interval)) = (&stale.is, &interval.is) else {
        return;
    };
    let least = STALE_AFTER_INTERVALS_MIN * interval;
    if *found < least {
        let rule = format!(
            "must be at least {STALE_AFTER_INTERVALS_MIN} x scrape.interval, here {}: with less, one lost scrape makes a healthy pod unknown",
            duration_text(Millis(least))
        );
        let value = format!("{:?}", duration_text(Millis(*found)));
        report.add(stale.at, format!("pools[{index}].routing.stale_after"), value, rule);
    }
}

/// Each pool has a fixed share, in whole reads.
fn budget(document: &Record, pools: usize, report: &mut Report) {
    let Some(budget) = below(document, "poll", "budget_per_second") else {
        return;
    };
    match budget.is {
        Is::Number(found) if found < pools as u64 => {
            let rule = format!("must be at least 1 for each pool, here {pools}: each gets an equal share");
            report.add(budget.at, "poll.budget_per_second".to_owned(), found.to_string(), rule);
        }
        _ => {}
    }
}

fn addresses(index: usize, discovery: &Record, seen: &mut Seen<'_>, report: &mut Report) {
    let Some(Is::List(pods)) = is(discovery, "static") else {
        return;
    };
    for (place, pod) in pods.iter().enumerate() {
        let Is::Address(address) = pod.is else { continue };
        let first = earlier(&mut seen.addresses, identity(address), (index, place));
        // Twice in one list is an error of that list.
        if let Some((pool, first)) = first.filter(|(pool, _)| *pool != index) {
            let path = format!("pools[{index}].discovery.static[{place}]");
            let rule = format!(
                "must stand in one pool only, since each pool counts its own requests; also at pools[{pool}].discovery.static[{first}]"
            );
            report.add(pod.at, path, format!("\"{address}\""), rule);
        }
    }
}

fn envoy<'a>(index: usize, document: &Record, discovery: &'a Record, seen: &mut Seen<'a>, report: &mut Report) {
    let Some(section) = discovery.find("envoy_admin") else {
        return;
    };
    let Is::Record(inner) = &section.is else { return };
    let path = format!("pools[{index}].discovery.envoy_admin");
    if let Some(host) = other_host(document) {
        let rule = format!("must not be `envoy_admin` under the host {host}: only Envoy has this page");
        report.add(section.at, path.clone(), "{...}".to_owned(), rule);
    }
    let (Some(cluster), Some(Is::Word(admin))) = (inner.find("cluster"), is(inner, "admin")) else {
        return;
    };
    let Is::Word(name) = &cluster.is else { return };
    if let Some(first) = earlier(&mut seen.clusters, (name.as_str(), admin.as_str()), index) {
        let rule = format!(
            "must be the cluster of one pool only, since each pool counts its own requests; pools[{first}] has it too"
        );
        report.add(cluster.at, format!("{path}.cluster"), format!("{name:?}"), rule);
    }
}

/// APISIX has no timer that could read a list.
fn unread(index: usize, document: &Record, discovery: &Record, report: &mut Report) {
    if other_host(document) != Some("apisix") {
        return;
    }
    for kind in ["kubernetes", "json"] {
        let asked = discovery
            .find(kind)
            .filter(|section| matches!(section.is, Is::Record(_)));
        if let Some(section) = asked {
            let rule = format!(
                "must not be `{kind}` under the host apisix: nothing is read there, so name the pods in `static`"
            );
            report.add(
                section.at,
                format!("pools[{index}].discovery.{kind}"),
                "{...}".to_owned(),
                rule,
            );
        }
    }
}

/// Only Envoy says by which route a request came.
fn routes_of_envoy(index: usize, document: &Record, pool: &Record, report: &mut Report) {
    let (Some(host), Some(routes)) = (other_host(document), pool.find("routes")) else {
        return;
    };
    if matches!(&routes.is, Is::List(names) if !names.is_empty()) {
        let rule = format!("must be empty under the host {host}: only Envoy says by which route a request came");
        report.add(routes.at, format!("pools[{index}].routes"), "[...]".to_owned(), rule);
    }
}

/// Two pools that ask the same for the same have the same pods.
fn lists<'a>(index: usize, discovery: &'a Record, seen: &mut Seen<'a>, report: &mut Report) {
    let kinds = [
        ("kubernetes", ["cluster", "namespace", "service"]),
        ("json", ["cluster", "authority", "path"]),
    ];
    for (kind, keys) in kinds {
        let Some(section) = discovery.find(kind) else { continue };
        let Is::Record(inner) = &section.is else { continue };
        let word = |key: &str| match is(inner, key) {
            Some(Is::Word(word)) => Some(word.as_str()),
            _ => None,
        };
        let Some(mut asked) = keys.into_iter().map(word).collect::<Option<Vec<&str>>>() else {
            continue;
        };
        asked.extend(words(inner, "ports", "").map(|(_, _, port)| port));
        if let Some(first) = earlier(&mut seen.lists, asked, index) {
            let rule = format!(
                "must be the list of one pool only, since each pool counts its own requests; pools[{first}] has it too"
            );
            let path = format!("pools[{index}].discovery.{kind}");
            report.add(section.at, path, "{...}".to_owned(), rule);
        }
    }
}
