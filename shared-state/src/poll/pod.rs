//! What the poller knows of one pod.

use super::history::History;
use super::journal::Told;
use super::publish::Names;
use super::schedule::Schedule;
use crate::clock::Now;
use crate::limits::ADAPTERS_PER_POD_MAX;
use crate::models::Model;
use crate::sample::{Activity, Level, Sample};
use crate::table::{ActiveAdapters, Load, Models, NameId, PodRow, Trend};
use crate::units::UnixMillis;

/// One pod: its row, and what the row is made from.
#[derive(Debug)]
pub(super) struct Pod {
    /// What readers see. Its name ids are filled in by [`Pod::intern`].
    pub(super) row: PodRow,
    pub(super) metrics: Schedule,
    pub(super) models: Schedule,
    pub(super) told_metrics: Told,
    pub(super) told_models: Told,
    /// The quality of its pages that was told last.
    pub(super) told_reason: Option<&'static str>,
    pub(super) history: History,
    pub(super) listed: Option<Listed>,
    /// As `name=value`: those that the config asks for.
    pub(super) labels: Vec<String>,
    pub(super) activity: Option<Activity>,
    pub(super) resident: Option<Vec<(String, Level)>>,
    /// Lists changed since the ids were filled in.
    pub(super) changed: bool,
}

/// A models page.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Listed {
    pub(super) at: UnixMillis,
    pub(super) models: Vec<Model>,
    /// The adapters again: they resolve commas in metrics pages.
    pub(super) adapters: Vec<String>,
}

impl Listed {
    fn new(at: UnixMillis, models: Vec<Model>) -> Self {
        let adapters = models
            .iter()
            .filter(|model| model.parent.is_some())
            .map(|model| model.id.clone());
        Self {
            at,
            adapters: adapters.collect(),
            models,
        }
    }
}

/// What a scrape brought beside numbers.
#[derive(Debug, PartialEq)]
pub(super) struct News {
    pub(super) restarted: bool,
    pub(super) trend_was: Trend,
    pub(super) was_slow: bool,
}

impl Pod {
    pub(super) fn new(row: PodRow, metrics: Schedule, models: Schedule) -> Self {
        Self {
            row,
            metrics,
            models,
            told_metrics: Told::default(),
            told_models: Told::default(),
            told_reason: None,
            history: History::default(),
            listed: None,
            labels: Vec::new(),
            activity: None,
            resident: None,
            changed: true,
        }
    }

    /// Takes over what another poller knew.
    pub(super) fn inherit(&mut self, row: &PodRow, names: &[String]) {
        let name = |id: NameId| names.get(usize::from(id.0)).cloned().unwrap_or_default();
        let all = |ids: &[NameId]| ids.iter().copied().map(name).collect::<Vec<_>>();
        self.row = row.clone();
        self.history = History::of(row);
        self.labels = all(&row.labels);
        self.activity = row.activity.as_ref().map(|activity| Activity {
            running: all(&activity.running),
            waiting: all(&activity.waiting),
            max: activity.max,
        });
        let resident = |ids: &Vec<(NameId, Level)>| ids.iter().map(|(id, level)| (name(*id), *level)).collect();
        self.resident = row.resident.as_ref().map(resident);
        self.listed = row.models.as_ref().map(|models| {
            let model = |id: NameId, parent, max_model_len| Model {
                id: name(id),
                parent,
                max_model_len,
            };
            let bases = models.bases.iter().map(|id| model(*id, None, models.max_model_len));
            let adapters = models.adapters.iter();
            let adapters = adapters.map(|(id, base)| model(*id, Some(base.map(name).unwrap_or_default()), None));
            Listed::new(models.at, bases.chain(adapters).collect())
        });
        self.changed = true;
    }

    /// Takes a usable page in.
    pub(super) fn read(&mut self, sample: Sample, now: Now) -> News {
        let step = self.history.step(&sample, now.steady);
        let row = &mut self.row;
        let (trend_was, was_slow) = (row.trend, row.slow.is_some());
        row.incarnation = row.incarnation.saturating_add(u32::from(step.restarted));
        if step.restarted || row.scraped_at.is_none() {
            row.since = now.wall;
        }
        row.scraped_at = Some(now.wall);
        row.reported_at = None;
        row.failures = 0;
        row.last_error = None;
        row.trend = step.trend;
        // Readers refuse a table with a number that is none.
        row.started_at = sample.started_at.filter(|at| at.is_finite());
        row.generated = sample.counters.generation_tokens.filter(|tokens| tokens.is_finite());
        row.load = load(&sample);
        row.rates = step.rates;
        row.tempo = self.history.tempo.tempo();
        row.slow = self.history.tempo.slow(now);
        self.changed |= (&self.activity, &self.resident) != (&sample.activity, &sample.resident);
        self.activity = sample.activity;
        self.resident = sample.resident;
        News {
            restarted: step.restarted,
            trend_was,
            was_slow,
        }
    }

    /// Takes a models page in. Returns whether it lists something else than the last one.
    pub(super) fn list(&mut self, models: Vec<Model>, now: Now) -> bool {
        let other = self.listed.as_ref().is_none_or(|listed| listed.models != models);
        self.listed = Some(Listed::new(now.wall, models));
        self.changed = true;
        other
    }

    pub(super) fn adapters(&self) -> &[String] {
        self.listed.as_ref().map_or(&[], |listed| &listed.adapters)
    }

    /// Fills in the ids of bases and adapters in use: a few per pod, and the ones that matter.
    pub(super) fn intern_used(&mut self, names: &mut Names) {
        for model in self
            .listed
            .iter()
            .flat_map(|listed| &listed.models)
            .filter(|model| model.parent.is_none())
        {
            names.id(&model.id);
        }
        let mut ids = |list: &[String]| -> Vec<NameId> {
            list.iter()
                .filter_map(|name| names.id(name))
                .take(ADAPTERS_PER_POD_MAX)
                .collect()
        };
        self.row.labels = ids(&self.labels);
        self.row.activity = self.activity.as_ref().map(|activity| ActiveAdapters {
            running: ids(&activity.running),
            waiting: ids(&activity.waiting),
            max: activity.max,
        });
        self.row.resident = self.resident.as_ref().map(|resident| {
            let ids = resident
                .iter()
                .filter_map(|(name, level)| names.id(name).map(|id| (id, *level)));
            ids.take(ADAPTERS_PER_POD_MAX).collect()
        });
    }

    /// Fills in the ids of everything that is listed. A list that does not fit is dated 0.
    pub(super) fn intern_listed(&mut self, names: &mut Names) {
        self.row.models = self.listed.as_ref().map(|listed| {
            let mut row = Models {
                at: listed.at,
                bases: Vec::new(),
                adapters: Vec::new(),
                max_model_len: None,
            };
            for model in &listed.models {
                let Some(id) = names.id(&model.id) else {
                    row.at = if Names::is_usable(&model.id) {
                        UnixMillis(0)
                    } else {
                        row.at
                    };
                    continue;
                };
                match &model.parent {
                    Some(parent) => row.adapters.push((id, names.id(parent))),
                    None => {
                        row.bases.push(id);
                        row.max_model_len = match (row.max_model_len, model.max_model_len) {
                            (Some(a), Some(b)) => Some(a.min(b)),
                            (a, b) => a.or(b),
                        };
                    }
                }
            }
            row
        });
        self.changed = false;
    }
}

pub(super) fn load(sample: &Sample) -> Load {
    let fraction = |kv: Option<f64>| kv.filter(|kv| !kv.is_nan()).map(|kv| kv.clamp(0.0, 1.0) as f32);
    Load {
        engine: sample.engine,
        status: sample.status,
        running: sample.running,
        waiting: sample.waiting,
        deferred: sample.deferred,
        kv_mean: fraction(sample.kv_mean),
        kv_max: fraction(sample.kv_max),
        kv_capacity: sample.kv_capacity,
        engines: sample.engines,
        sleeping: sample.sleeping,
    }
}
