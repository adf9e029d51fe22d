// SPDX-License-Identifier: GPL-2.0

//! Statistics of a comparison: summaries, the exact rank-sum test and Holm's correction.
//!
//! The test is ours because hackbench prints milliseconds, so equal times are common, and of the
//! crates at hand `statrs` refuses its exact test when there are ties. Here ties get mid-ranks and
//! the null distribution is that of the ranks at hand over all ways to split them, counted in
//! integers. Nothing is approximated: samples too many for that are refused, see [`MAX_POOLED`].

use anyhow::{Result, ensure};

/// A row is significant when its p value after Holm's correction is at most this.
pub const ALPHA: f64 = 0.05;

/// The most samples of both sides together: C(128, 64) ways to split them still fit a `u128`, and
/// counting them takes well under a second.
pub const MAX_POOLED: usize = 128;

/// What a table shows of one side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The arithmetic mean.
    pub mean: f64,
    /// The middle sample, or the mean of the two in the middle.
    pub median: f64,
    /// The sample standard deviation in percent of the mean; nothing for a single sample or a mean
    /// of 0.
    pub cv_pct: Option<f64>,
}

impl Summary {
    /// Sums up `samples`.
    ///
    /// # Errors
    ///
    /// When there are none, or one is not a finite number.
    pub fn new(samples: &[f64]) -> Result<Self> {
        let sorted = sorted(samples)?;
        let n = sorted.len();
        let mean = sorted.iter().sum::<f64>() / n as f64;
        let median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0;
        let squares: f64 = sorted.iter().map(|x| (x - mean).powi(2)).sum();
        let cv_pct =
            (n > 1 && mean != 0.0).then(|| 100.0 * (squares / (n - 1) as f64).sqrt() / mean.abs());
        Ok(Self {
            mean,
            median,
            cv_pct,
        })
    }
}

/// The p value of the exact two-sided Wilcoxon rank-sum (Mann-Whitney) test, given the ties:
/// twice the smaller tail, at most 1.
///
/// # Errors
///
/// When a side has no samples, one is not a finite number, or both have more than [`MAX_POOLED`].
pub fn rank_sum(x: &[f64], y: &[f64]) -> Result<f64> {
    sorted(x)?;
    sorted(y)?;
    let pooled = sorted(&[x, y].concat())?;
    let (n, all) = (x.len(), pooled.len());
    ensure!(
        all <= MAX_POOLED,
        "{all} samples are too many for an exact test: at most {MAX_POOLED}"
    );
    // Twice the mid-rank is an integer: the samples below and the samples up to `value`, plus 1.
    let rank = |value: f64| {
        pooled.partition_point(|&z| z < value) + pooled.partition_point(|&z| z <= value) + 1
    };
    let observed: usize = x.iter().map(|&value| rank(value)).sum();

    // ways[k][s]: in how many ways k of the samples have ranks that sum up to s.
    let mut ways = vec![vec![0u128; all * (all + 1) + 1]; n + 1];
    ways[0][0] = 1;
    let mut sum = 0;
    for (taken, &value) in pooled.iter().enumerate() {
        let rank = rank(value);
        for k in (1..=n.min(taken + 1)).rev() {
            let (fewer, these) = ways.split_at_mut(k);
            // So far no ranks add up to more than `sum`.
            for (to, from) in these[0][rank..].iter_mut().zip(&fewer[k - 1][..=sum]) {
                *to += from;
            }
        }
        sum += rank;
    }
    let lower: u128 = ways[n][..=observed].iter().sum();
    let upper: u128 = ways[n][observed..].iter().sum();
    let total: u128 = ways[n].iter().sum();
    Ok((2.0 * lower.min(upper) as f64 / total as f64).min(1.0))
}

/// The smallest p value that [`rank_sum`] can give for sides of `n` and `m` samples: one side lies
/// wholly below the other, in 1 of C(n + m, n) ways on each side.
pub fn smallest_p(n: usize, m: usize) -> f64 {
    let ways: f64 = (1..=n).map(|k| (m + k) as f64 / k as f64).product();
    (2.0 / ways).min(1.0)
}

/// The fewest pairs with which one of `rows` rows can be significant after Holm's correction,
/// which multiplies the smallest p value by the number of rows.
pub fn fewest_pairs(rows: usize) -> usize {
    (1..)
        .find(|&n| rows as f64 * smallest_p(n, n) <= ALPHA)
        .unwrap_or(usize::MAX)
}

/// Holm's step-down correction: the adjusted p value of each, in the order given.
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut adjusted = vec![0.0; p.len()];
    let mut largest = 0.0_f64;
    for (done, &row) in order.iter().enumerate() {
        largest = largest.max((p[row] * (p.len() - done) as f64).min(1.0));
        adjusted[row] = largest;
    }
    adjusted
}

/// Two modes of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Modes {
    /// Between them: half way from the largest sample of the lower to the smallest of the upper.
    pub cut: f64,
    /// Ashman's D: the distance of their means in units of their standard deviations (the root of
    /// the mean of the two variances).
    pub ashman_d: f64,
}

/// From which Ashman's D on samples have two modes here. The usual 2 is for mixtures that were
/// fitted; cutting a normal distribution in two gives 2.7, an even one 3.5.
const TWO_MODES: f64 = 5.0;
/// The least share of the samples that a mode has.
const LEAST_SHARE: f64 = 0.1;

/// The two modes of `samples`, if there are: they are cut where the squared distances from the means
/// of the two parts are least in sum (the optimal 2-means in one dimension). Ashman, Bird and Zepf,
/// Astronomical Journal 108 (1994), have D.
///
/// # Errors
///
/// When there are no samples, or one is not a finite number.
pub fn modes(samples: &[f64]) -> Result<Option<Modes>> {
    let sorted = sorted(samples)?;
    let least = (LEAST_SHARE * sorted.len() as f64).ceil().max(2.0) as usize;
    let moments = |part: &[f64]| {
        let mean = part.iter().sum::<f64>() / part.len() as f64;
        let squares: f64 = part.iter().map(|x| (x - mean).powi(2)).sum();
        (mean, squares)
    };
    let cuts = (1..sorted.len()).map(|at| {
        let (lower, upper) = sorted.split_at(at);
        let (low, high) = (moments(lower), moments(upper));
        (at, low.1 + high.1, low, high)
    });
    let Some((at, _, low, high)) = cuts.min_by(|a, b| a.1.total_cmp(&b.1)) else {
        return Ok(None);
    };
    if at < least || sorted.len() - at < least || low.0 == high.0 {
        return Ok(None);
    }
    let variance = |(_, squares): (f64, f64), n: usize| squares / n as f64;
    let spread = (variance(low, at) + variance(high, sorted.len() - at)) / 2.0;
    let ashman_d = (high.0 - low.0) / spread.sqrt();
    Ok((ashman_d >= TWO_MODES).then_some(Modes {
        cut: (sorted[at - 1] + sorted[at]) / 2.0,
        ashman_d,
    }))
}

fn sorted(samples: &[f64]) -> Result<Vec<f64>> {
    ensure!(!samples.is_empty(), "there are no samples");
    ensure!(
        samples.iter().all(|x| x.is_finite()),
        "a sample is not a finite number: {samples:?}"
    );
    let mut samples = samples.to_vec();
    samples.sort_by(f64::total_cmp);
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-12 * b.abs().max(1e-3)
    }

    /// scipy 1.17.1. Without ties: `mannwhitneyu(x, y, method='exact').pvalue`. With ties:
    /// `permutation_test((x, y), lambda a, b, axis: mannwhitneyu(a, b, axis=axis,
    /// method='asymptotic').statistic, permutation_type='independent', vectorized=True,
    /// n_resamples=numpy.inf).pvalue`, which goes through all permutations.
    #[test]
    #[rustfmt::skip]
    fn rank_sum_equals_scipy() {
        let to = |n: u32| (1..=n).map(f64::from).collect::<Vec<_>>();
        let by = |start: f64| (0..64).map(|i| f64::from(2 * i) + start).collect::<Vec<_>>();
        let table: &[(&[f64], &[f64], f64)] = &[
            (&[1.], &[2.], 1.0),
            (&[1., 2., 3.], &[4., 5., 6.], 0.1),
            (&[1., 2., 3., 4.], &[5., 6., 7., 8.], 0.02857142857142857),
            (&[19., 22., 16., 29., 24.], &[20., 11., 17., 12.], 0.1111111111111111),
            (&[5.1, 4.9, 6.2, 5.5, 5.8, 6.0, 5.3], &[4.8, 5.0, 5.2, 4.7, 5.4, 4.6, 4.5, 5.05], 0.013986013986013986),
            (&by(0.), &by(21.), 0.003094300759664634),
            // Ties.
            (&[1.31, 1.29, 1.35, 1.30, 1.33], &[1.24, 1.30, 1.26, 1.27, 1.25], 0.023809523809523808),
            (&[1., 2., 2., 3.], &[2., 3., 4., 4.], 0.2),
            (&[1., 1., 1., 2.], &[2., 2., 2., 2.], 0.14285714285714285),
            (&[1., 1., 2.], &[1., 3., 3., 3., 5.], 0.14285714285714285),
            (&[7., 7., 7.], &[7., 7., 7.], 1.0),
            (&to(10), &[1., 2., 3., 4., 5., 6., 7., 8., 9., 20.], 0.9771807140228193),
        ];
        for (x, y, p) in table {
            assert!(close(rank_sum(x, y).unwrap(), *p), "{x:?} {y:?}: {:?}", rank_sum(x, y));
            assert!(close(rank_sum(y, x).unwrap(), *p), "the sides exchanged: {x:?} {y:?}");
        }
    }

    /// Two-sided 5 % critical values of U as the tables of textbooks have them: U at most this is
    /// significant, one more is not.
    #[test]
    fn rank_sum_agrees_with_tables_of_critical_values() {
        for (n, critical) in [(4, 0), (5, 2), (6, 5), (7, 8), (8, 13), (10, 23), (20, 127)] {
            let p = |u: usize| {
                // `x` is 0..n moved up past `u` samples of `y` in all.
                let (steps, rest) = (u / n, u % n);
                let y: Vec<f64> = (0..n).map(|i| i as f64).collect();
                let x: Vec<f64> = (0..n)
                    .map(|i| (steps + usize::from(i >= n - rest)) as f64 - 0.5 + i as f64 * 1e-3)
                    .collect();
                rank_sum(&x, &y).unwrap()
            };
            assert!(p(critical) <= ALPHA, "n = {n}: {}", p(critical));
            assert!(p(critical + 1) > ALPHA, "n = {n}: {}", p(critical + 1));
        }
    }

    /// Cuts of `jenkspy.jenks_breaks(samples, 2)`'s classes, D by hand.
    #[test]
    fn two_modes_are_found_where_they_are() {
        // Means 1.5 and 11.5, variances 0.25.
        let modes = |samples: &[f64]| super::modes(samples).unwrap();
        let found = modes(&[1.0, 2.0, 11.0, 12.0, 1.0, 2.0, 11.0, 12.0]).unwrap();
        assert_eq!((found.cut, found.ashman_d), (6.5, 20.0));
        // One in five.
        let found = modes(&[1.0, 1.1, 1.2, 1.3, 1.0, 1.1, 1.2, 1.3, 2.0, 2.1]).unwrap();
        assert!(close(found.cut, 1.65), "{found:?}");
        // An even distribution, and the quantiles of a normal one.
        let even: Vec<f64> = (0..40).map(f64::from).collect();
        assert_eq!(modes(&even), None);
        let normal = [
            -1.96, -1.44, -1.15, -0.93, -0.76, -0.6, -0.45, -0.32, -0.19, -0.06, 0.06, 0.19, 0.32,
            0.45, 0.6, 0.76, 0.93, 1.15, 1.44, 1.96,
        ];
        assert_eq!(modes(&normal), None);
        // An outlier is no mode, nor are equal samples two.
        let mut outlier = vec![1.0; 19];
        outlier.push(9.0);
        assert_eq!(modes(&outlier), None);
        assert_eq!(modes(&[1.0; 20]), None);
        assert_eq!(modes(&[1.0]), None);
    }

    #[test]
    fn bad_samples_are_refused() {
        for bad in [&[][..], &[f64::NAN], &[1.0, f64::INFINITY]] {
            assert!(Summary::new(bad).is_err());
            assert!(rank_sum(bad, &[1.0]).is_err() && rank_sum(&[1.0], bad).is_err());
        }
        assert!(rank_sum(&[1.0; 64], &[2.0; 64]).is_ok());
        let error = rank_sum(&[1.0; 65], &[2.0; 64]).unwrap_err().to_string();
        assert!(error.contains("129") && error.contains("128"), "{error}");
    }

    /// numpy 2.4.6 `mean`, `median`; scipy 1.17.1 `variation(x, ddof=1)`.
    #[test]
    fn summary_equals_scipy() {
        let summary = Summary::new(&[1.31, 1.29, 1.35, 1.30, 1.33]).unwrap();
        assert!(close(summary.mean, 1.316) && close(summary.median, 1.31));
        assert!(close(summary.cv_pct.unwrap(), 1.830029571245031));
        assert_eq!(Summary::new(&[4.0, 1.0, 3.0, 2.0]).unwrap().median, 2.5);
        assert_eq!(Summary::new(&[3.0]).unwrap().cv_pct, None);
        assert_eq!(Summary::new(&[0.0, 0.0]).unwrap().cv_pct, None);
        assert_eq!(Summary::new(&[2.0, 2.0]).unwrap().cv_pct, Some(0.0));
    }

    #[test]
    fn smallest_p_is_that_of_sides_apart() {
        assert_eq!(smallest_p(1, 1), 1.0);
        assert!(close(smallest_p(3, 3), 0.1) && close(smallest_p(4, 4), 2.0 / 70.0));
        for n in 1..8 {
            let low: Vec<f64> = (0..n).map(|i| i as f64).collect();
            let high: Vec<f64> = (0..9).map(|i| i as f64 + 100.0).collect();
            assert!(close(rank_sum(&low, &high).unwrap(), smallest_p(n, 9)));
        }
        // 2 rows: 2 * 0.0286 > 0.05 >= 2 * 0.0079; 15 rows: 15 * 0.0022 <= 0.05.
        assert_eq!([1, 2, 7, 15].map(fewest_pairs), [4, 5, 6, 6]);
    }

    /// statsmodels 0.15.0 `multipletests(p, method='holm')[1]`.
    #[test]
    fn holm_equals_statsmodels() {
        let table: &[(&[f64], &[f64])] = &[
            (&[], &[]),
            (&[0.03], &[0.03]),
            (&[0.01, 0.04, 0.03, 0.005], &[0.03, 0.06, 0.06, 0.02]),
            (&[0.02, 0.02, 0.9], &[0.06, 0.06, 0.9]),
            (&[0.7, 0.8], &[1.0, 1.0]),
        ];
        for (p, expected) in table {
            let adjusted = holm(p);
            assert_eq!(adjusted.len(), expected.len());
            for (a, b) in adjusted.iter().zip(*expected) {
                assert!(close(*a, *b), "{p:?}: {adjusted:?}");
            }
        }
    }
}
