// Steps that survive losses, in C++. Three processes.

#include "test.hpp"

#include <stdexcept>
#include <string>
#include <vector>

static_assert(!std::is_copy_constructible_v<kolo::Survivors> && std::is_nothrow_move_constructible_v<kolo::Survivors>);

int main() {
    auto comm = kolo::Communicator::from_env();
    const int first = comm.rank();
    const std::vector<float> input(1000, static_cast<float>(1 << first));
    std::vector<float> output(1000);
    std::vector<kolo::Change> changes;

    auto made = kolo::Survivors(std::move(comm));
    EXPECT(comm.get() == nullptr);
    made.at_least(1).on_change([&](const kolo::Change &change) { changes.push_back(change); });
    // The watcher moves with the group.
    auto group = std::move(made);
    EXPECT(made.get() == nullptr);

    group.all_reduce(input, output);
    EXPECT(output[999] == 7 && changes.empty());

    // An exception of the step's own is an error on all ranks, and is not repeated.
    int runs = 0;
    const auto throws = [&](const kolo::Communicator &) {
        runs++;
        if (first == 1) {
            throw std::logic_error("of the step's own");
        }
    };
    try {
        group.run(throws);
        EXPECT(false);
    } catch (const std::logic_error &error) {
        EXPECT(first == 1 && error.what() == std::string("of the step's own"));
    } catch (const kolo::Error &error) {
        EXPECT(first != 1 && error.result() == KOLO_REVOKED);
    }
    EXPECT(runs == 1);

    // After the limit, the step is over on all ranks, and the group goes on.
    const auto late = failure([&] {
        group.run([&](const kolo::Communicator &members) { if (first == 0) { members.barrier(); } },
                  std::chrono::milliseconds(300));
    });
    EXPECT(late == KOLO_TIMEOUT || late == KOLO_ABORTED || late == KOLO_REVOKED);
    group.all_reduce(input, output, kolo::Op::sum, std::chrono::minutes(1));
    EXPECT(output[0] == 7);

    // All ranks have the same state, and no newcomer asks for a copy. survivors.c tests fetching.
    std::vector<double> table(500, 0.5);
    int steps[2] = {3, 4};
    const std::vector<kolo::Part> parts = {{"table", table}, {"steps", steps}};
    auto state = group.with_members([](const kolo::Communicator &members) { return kolo::State(members); });
    EXPECT(state.version() == 0);
    state.set_version(6);
    state.advance();
    EXPECT(group.run([&](const kolo::Communicator &members) { return state.share(members, parts); }) == 0);
    EXPECT(state.version() == 7 && !state.offer(group, parts));
    kolo::State none;
    EXPECT(!none.version());
    EXPECT(failure([&] { none.offer(group, parts); }) == KOLO_USAGE);
    EXPECT(failure([&] { none.fetch("nonsense", parts, std::chrono::seconds(1)); }) == KOLO_CONFIGURATION);

    // Rank 0, which runs the control plane, ends in the middle of a step.
    changes.clear();
    runs = 0;
    if (first == 2) {
        group.on_change(nullptr);
    }
    const std::size_t left = group.run([&](const kolo::Communicator &members) {
        runs++;
        if (first == 0) {
            std::_Exit(0);
        }
        members.all_reduce(input, output, kolo::Op::sum);
        return static_cast<std::size_t>(members.size());
    });
    EXPECT(left == 2 && runs == 2 && output[0] == 6);
    EXPECT(changes.size() == (first == 1 ? 1U : 0U));
    if (first == 1) {
        EXPECT(changes[0].left == std::vector<int>{0} && changes[0].came.empty());
        EXPECT(changes[0].size == 2 && changes[0].rank == 0);
    }
    group.admit();
    EXPECT(group.with_members([](const kolo::Communicator &now) { return now.rank(); }) == first - 1);

    group.at_least(2);
    const auto too_few = failure([&] {
        group.run([&](const kolo::Communicator &members) {
            if (first == 1) {
                std::_Exit(0);
            }
            members.barrier();
        });
    });
    EXPECT(too_few == KOLO_MINORITY);
    EXPECT(failure([&] { group.up_to(-5); }) == KOLO_USAGE);
    EXPECT(failure([&] { kolo::Survivors(std::move(comm)); }) == KOLO_USAGE);
    return 0;
}
