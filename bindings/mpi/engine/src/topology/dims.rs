//! Balanced grids: the factorisations of `MPI_Dims_create`.

/// Returns `n` factors of a number that are as close to each other as possible, the largest first: the difference between the largest and
/// the smallest is the least that there is. Of factorisations with the same difference, the one with the largest smallest factors counts.
pub(super) fn balanced(number: u64, n: usize) -> Vec<u64> {
    let primes = primes(number);
    // Without factors to join, every smallest factor is 1 or a prime, so the primes themselves are the closest.
    if n >= primes.len() {
        let mut all = vec![1; n - primes.len()];
        all.extend(primes);
        all.reverse();
        return all;
    }
    let mut best = search(number, n, &primes);
    best.reverse();
    best
}

/// Returns the prime factors in ascending order.
fn primes(mut number: u64) -> Vec<u64> {
    let (mut found, mut next) = (Vec::new(), 2);
    while next * next <= number {
        while number.is_multiple_of(next) {
            found.push(next);
            number /= next;
        }
        next += 1;
    }
    if number > 1 {
        found.push(number);
    }
    found
}

/// Returns all divisors in ascending order.
fn divisors(primes: &[u64]) -> Vec<u64> {
    let mut all = vec![1];
    for prime in primes {
        let more: Vec<u64> = all.iter().map(|divisor| divisor * prime).collect();
        all.extend(more);
        all.sort_unstable();
        all.dedup();
    }
    all
}

/// Returns a power, or the largest number if it is larger.
fn power(factor: u64, times: usize) -> u64 {
    factor.saturating_pow(times as u32)
}

/// Tries all pairs of a smallest and a largest factor that may be closer than those found so far.
fn search(number: u64, n: usize, primes: &[u64]) -> Vec<u64> {
    if n == 1 {
        return vec![number];
    }
    let divisors = divisors(primes);
    let widest = primes.last().copied().unwrap_or(1);
    let mut best = Vec::new();
    let mut least = u64::MAX;
    // A larger smallest factor comes first, so a later one counts only if it is closer.
    for low in divisors.iter().rev().copied().filter(|low| power(*low, n) <= number) {
        for high in divisors.iter().copied().filter(|high| *high >= widest.max(low)) {
            if high - low >= least {
                break;
            }
            let rest = number / low;
            if !rest.is_multiple_of(high) || power(high, n - 1) < rest {
                continue;
            }
            if let Some(between) = ascending(rest / high, n - 2, low, high, &divisors) {
                least = high - low;
                best = [vec![low], between, vec![high]].concat();
                break;
            }
        }
    }
    best
}

/// Returns `n` factors of a number between `low` and `high` in ascending order, each as large as possible.
fn ascending(number: u64, n: usize, low: u64, high: u64, divisors: &[u64]) -> Option<Vec<u64>> {
    if n == 0 {
        return (number == 1).then(Vec::new);
    }
    let end = divisors.partition_point(|divisor| *divisor <= high && power(*divisor, n) <= number);
    let usable = divisors[..end].iter().rev().take_while(|divisor| **divisor >= low);
    usable
        .filter(|first| number.is_multiple_of(**first))
        .take_while(|first| number / **first <= power(high, n - 1))
        .find_map(|first| {
            let mut all = vec![*first];
            all.extend(ascending(number / first, n - 1, *first, high, divisors)?);
            Some(all)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists all factorisations, each in ascending order.
    fn all(number: u64, n: usize, low: u64) -> Vec<Vec<u64>> {
        if n == 1 {
            return if number >= low { vec![vec![number]] } else { Vec::new() };
        }
        let mut found = Vec::new();
        for first in (low..=number).filter(|first| number.is_multiple_of(*first)) {
            for rest in all(number / first, n - 1, first) {
                found.push([vec![first], rest].concat());
            }
        }
        found
    }

    #[test]
    fn the_closest_of_all_factorisations() {
        for number in (1..=420).chain([1024, 1260, 7488]) {
            for n in 1..=5 {
                let spread = |factors: &[u64]| factors[n - 1] - factors[0];
                let every = all(number, n, 1);
                let least = every.iter().map(|factors| spread(factors)).min();
                let mut best =
                    every.into_iter().filter(|factors| Some(spread(factors)) == least).max().unwrap();
                best.reverse();
                assert_eq!(balanced(number, n), best, "{number} in {n} dimensions");
            }
        }
        assert_eq!(balanced(7488, 3), [26, 18, 16]);
    }

    #[test]
    fn many_factors_and_dimensions_take_no_time() {
        // The numbers below 2^31 with the most divisors, with the most factors, and with a large prime factor.
        for number in [2_095_133_040, 1 << 30, 720_720 * 2903, 5040 * 401_407, 2_147_483_647, 46_340 * 46_340]
        {
            for n in (1..40).chain([100_000]) {
                let found = balanced(number, n);
                assert_eq!((found.len(), found.iter().product::<u64>()), (n, number));
                assert!(found.is_sorted_by(|one, next| one >= next));
            }
        }
    }
}
