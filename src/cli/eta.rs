//! How long work will still take.

use std::time::Duration;

/// No estimate before so much time, and before so much of the work.
const MIN_ELAPSED: Duration = Duration::from_secs(1);
const MIN_SHARE: f64 = 0.02;

/// The weight of what was done lately in the pace; the rest is that of all so far. Work that is planned well keeps
/// its pace, and lately finds a machine that became slower.
const LATELY: f64 = 0.3;

/// The work that counts as lately, as a share of what is done.
const WINDOW: f64 = 0.3;

/// Estimates the time left from the shares of the work that were done at some times. It estimates nothing before it
/// has seen enough.
#[derive(Clone, Debug, Default)]
pub(super) struct Eta {
    /// Times and shares, both ascending.
    marks: Vec<(Duration, f64)>,
}

impl Eta {
    /// At `elapsed`, `share` of the work (0 to 1) is done.
    pub(super) fn mark(&mut self, elapsed: Duration, share: f64) {
        if self.marks.last().is_none_or(|(time, done)| elapsed > *time && share > *done) {
            self.marks.push((elapsed, share));
        }
    }

    /// The time left at `now`; `None` where it is not known, or should be over.
    pub(super) fn left(&self, now: Duration) -> Option<Duration> {
        let &(time, share) = self.marks.last()?;
        if time < MIN_ELAPSED || share < MIN_SHARE {
            return None;
        }
        let all = time.as_secs_f64() / share;
        let from = self.marks.partition_point(|(_, done)| *done < share * (1.0 - WINDOW)).saturating_sub(1);
        let (then, before) = self.marks[from];
        let lately = match share - before {
            some if some > 0.0 => (time - then).as_secs_f64() / some,
            _ => all,
        };
        let pace = LATELY * lately + (1.0 - LATELY) * all;
        let left = pace * (1.0 - share).max(0.0) - now.saturating_sub(time).as_secs_f64();
        (left > 0.0).then(|| Duration::from_secs_f64(left))
    }
}

/// The time left in words, rounded as far as it may be wrong.
pub(super) fn words(left: Duration) -> String {
    match left.as_secs() {
        seconds @ 0..100 => format!("{} s left", seconds + 1),
        seconds @ 100..6000 => format!("{} min left", (seconds + 30) / 60),
        seconds => format!("{} h left", (seconds + 1800) / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worst estimate, as a ratio, of work whose pieces have planned and true seconds, from a tenth of the work
    /// to nine tenths.
    fn worst(pieces: &[(f64, f64)]) -> f64 {
        let (planned, took): (f64, f64) = pieces.iter().fold((0.0, 0.0), |(p, t), piece| (p + piece.0, t + piece.1));
        let (mut eta, mut share, mut time, mut worst) = (Eta::default(), 0.0, 0.0, 1.0f64);
        for (plan, seconds) in &pieces[..pieces.len() - 1] {
            (share, time) = (share + plan / planned, time + seconds);
            let now = Duration::from_secs_f64(time);
            eta.mark(now, share);
            if (0.1..0.9).contains(&share) {
                let left = eta.left(now).expect("enough was done").as_secs_f64();
                let ratio = left / (took - time);
                worst = worst.max(ratio).max(1.0 / ratio);
            }
        }
        worst
    }

    #[test]
    fn uneven_pieces_are_weighed_by_their_plan() {
        // Pieces of very different lengths that take what is planned, on a machine that is three times slower.
        let even: Vec<(f64, f64)> =
            (0..200).map(|i| 0.05 * f64::from(1 + (i * 37) % 11)).map(|s| (s, 3.0 * s)).collect();
        assert!(worst(&even) < 1.01, "{}", worst(&even));
        // All of one kind first, which is planned a fifth too short, then all of another.
        let kinds: Vec<(f64, f64)> = (0..100).map(|i| if i < 50 { (1.0, 1.2) } else { (0.3, 0.3) }).collect();
        assert!(worst(&kinds) < 4.0 / 3.0, "{}", worst(&kinds));
        // Noise of a half up and down.
        let noise: Vec<(f64, f64)> = (0..300).map(|i| (1.0, if (i * 7) % 3 == 0 { 1.5 } else { 0.75 })).collect();
        assert!(worst(&noise) < 4.0 / 3.0, "{}", worst(&noise));
    }

    #[test]
    fn a_machine_that_becomes_slower_is_noticed() {
        let seconds = |count: usize, slow_from: usize| {
            let mut eta = Eta::default();
            let mut time = 0.0;
            for i in 0..count {
                time += if i < slow_from { 1.0 } else { 2.0 };
                eta.mark(Duration::from_secs_f64(time), (i + 1) as f64 / 100.0);
            }
            eta.left(Duration::from_secs_f64(time)).unwrap().as_secs_f64()
        };
        assert!((seconds(50, 100) - 50.0).abs() < 0.1);
        assert!(seconds(60, 40) > 1.1 * 40.0 * 80.0 / 60.0, "{}", seconds(60, 40));
    }

    #[test]
    fn nothing_is_said_before_enough_is_known() {
        let at = |seconds: f64| Duration::from_secs_f64(seconds);
        let mut eta = Eta::default();
        assert_eq!(eta.left(at(9.0)), None);
        eta.mark(at(0.1), 0.5);
        assert_eq!(eta.left(at(0.1)), None);
        let mut eta = Eta::default();
        eta.mark(at(50.0), 0.01);
        assert_eq!(eta.left(at(50.0)), None);
        eta.mark(at(100.0), 0.5);
        // It counts down, and says nothing once it was wrong.
        let left = eta.left(at(100.0)).unwrap();
        assert_eq!(eta.left(at(110.0)), Some(left - at(10.0)));
        assert_eq!(eta.left(at(1000.0)), None);
        // Marks that go back are left out.
        eta.mark(at(90.0), 0.6);
        eta.mark(at(101.0), 0.4);
        assert_eq!(eta.left(at(100.0)), Some(left));
        eta.mark(at(200.0), 1.0);
        assert_eq!(eta.left(at(200.0)), None);
    }

    #[test]
    fn times_are_said_in_words() {
        let say = |seconds| words(Duration::from_secs(seconds));
        assert_eq!(
            [0, 42, 100, 185, 7200].map(say),
            ["1 s left", "43 s left", "2 min left", "3 min left", "2 h left"]
        );
    }
}
