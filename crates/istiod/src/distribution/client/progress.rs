//! When waiting is over.

use crate::distribution::answer::{ConfigAnswer, Stage};

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Goal {
    /// The share of the proxies that must have it, from 0 to 1.
    pub threshold: f64,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// Enough have it.
    Done,
    /// Not yet.
    Waiting,
    /// Too many have refused it, or it was replaced: it cannot come about.
    Never,
}

impl Goal {
    /// Judges an answer. What nobody needs is done, unless a control plane has just started and its
    /// clients may be about to come back. While a replica cannot be asked nothing is done.
    pub(super) fn judge(self, answer: &ConfigAnswer) -> Progress {
        match answer.stage {
            Stage::Published => {}
            Stage::Missing | Stage::Waiting => return Progress::Waiting,
            Stage::Superseded => return Progress::Never,
        }
        let counts = answer.counts;
        if self.is_enough(counts.has, counts.required) {
            let settling = answer.replicas.iter().any(|replica| replica.settling);
            let sure = counts.undecided == 0
                && answer.unreachable.is_empty()
                && !(settling && counts.required == 0);
            return if sure {
                Progress::Done
            } else {
                Progress::Waiting
            };
        }
        if self.is_enough(counts.required - counts.refused, counts.required) {
            Progress::Waiting
        } else {
            Progress::Never
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    fn is_enough(self, some: usize, all: usize) -> bool {
        // A hair less, since 0.9 of 10 must not be 9.000000000000002.
        some as f64 >= self.threshold * all as f64 - 1e-9
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distribution::answer::{ConfigName, Counts, Replica, Unreachable};

    fn answer(has: usize, pending: usize, refused: usize) -> ConfigAnswer {
        ConfigAnswer {
            config: ConfigName {
                kind: "VirtualService".into(),
                namespace: "ns".into(),
                name: "a".into(),
            },
            stage: Stage::Published,
            hash: None,
            generation: 0,
            root: String::new(),
            published_seconds_ago: None,
            counts: Counts {
                required: has + pending + refused,
                has,
                pending,
                refused,
                ..Counts::default()
            },
            replicas: vec![Replica {
                name: "one".into(),
                connected: 10,
                root: String::new(),
                settling: false,
            }],
            unreachable: Vec::new(),
            proxies: Vec::new(),
        }
    }

    #[track_caller]
    fn check(threshold: f64, answer: &ConfigAnswer, expected: Progress) {
        assert_eq!(Goal { threshold }.judge(answer), expected);
    }

    #[test]
    fn it_is_done_when_the_share_has_it() {
        check(1.0, &answer(10, 0, 0), Progress::Done);
        check(1.0, &answer(9, 1, 0), Progress::Waiting);
        check(0.9, &answer(9, 1, 0), Progress::Done);
        check(0.9, &answer(9, 0, 1), Progress::Done);
        check(0.0, &answer(0, 3, 0), Progress::Done);
    }

    #[test]
    fn too_many_refusals_end_it() {
        check(0.9, &answer(5, 3, 2), Progress::Never);
        check(0.8, &answer(5, 3, 2), Progress::Waiting);
        check(0.99, &answer(0, 0, 1), Progress::Never);
    }

    #[test]
    fn nothing_is_done_that_is_not_known() {
        let mut asked = answer(10, 0, 0);
        asked.counts.undecided = 1;
        check(0.5, &asked, Progress::Waiting);
        let mut asked = answer(10, 0, 0);
        asked.unreachable.push(Unreachable {
            replica: "two".into(),
            error: "gone".into(),
        });
        check(0.5, &asked, Progress::Waiting);
        for stage in [Stage::Missing, Stage::Waiting] {
            let mut asked = answer(10, 0, 0);
            asked.stage = stage;
            check(0.5, &asked, Progress::Waiting);
        }
    }

    #[test]
    fn what_nobody_needs_is_done_once_everybody_is_back() {
        check(0.99, &answer(0, 0, 0), Progress::Done);
        let mut young = answer(0, 0, 0);
        young.replicas[0].settling = true;
        check(0.99, &young, Progress::Waiting);
    }

    #[test]
    fn a_replaced_content_never_comes() {
        let mut asked = answer(10, 0, 0);
        asked.stage = Stage::Superseded;
        check(0.5, &asked, Progress::Never);
    }
}
