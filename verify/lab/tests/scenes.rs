//! Tests of the statements that the page makes for each of its configurations.

use lab::{End, Lab, LeftOut, SCENES, first_failure};

/// Seeds that the page tries when it looks for a run that ends badly.
const SEEDS: u64 = 500;

#[test]
fn with_all_duties_every_run_ends_right() {
    for (number, scene) in SCENES.iter().enumerate() {
        assert_eq!(first_failure(number, None, SEEDS), None, "{}", scene.name);
    }
}

#[test]
fn each_duty_that_is_left_out_shows() {
    for (scene, number) in SCENES.iter().zip(0..) {
        for (i, LeftOut { name, .. }) in scene.duties.iter().enumerate() {
            let (seed, choices) = first_failure(number, Some(i), SEEDS).unwrap_or_else(|| panic!("{name}"));
            let mut lab = Lab::new(number, Some(i), seed);
            lab.run();
            println!("{}, {name}: seed {seed}, {choices} choices: {:?}", scene.name, lab.end().unwrap());
        }
    }
}

#[test]
fn a_run_ends_after_its_rounds_and_offers_nothing_more() {
    let mut lab = Lab::new(0, None, 7);
    assert!(lab.end().is_none() && !lab.offers().is_empty());
    lab.take(usize::MAX);
    assert!(lab.run() > 50);
    assert_eq!((lab.end(), lab.offers().len()), (Some(&End::Right), 0));
    lab.take(0);
    assert_eq!(lab.end(), Some(&End::Right));
}
