// Steps that outlive losses, in C++. Three processes.

#include <kolo.hpp>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                       \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (0)

static_assert(!std::is_copy_constructible_v<kolo::Survivors> && std::is_nothrow_move_constructible_v<kolo::Survivors>);

template <class Call> static koloResult_t failure(Call &&call) {
    try {
        call();
    } catch (const kolo::Error &error) {
        return error.result();
    }
    return KOLO_SUCCESS;
}

int main() {
    auto comm = kolo::Communicator::from_env();
    const int first = comm.rank();
    const std::vector<float> input(1000, static_cast<float>(1 << first));
    std::vector<float> output(1000);
    std::vector<kolo::Change> changes;

    auto made = kolo::Survivors(std::move(comm));
    EXPECT(comm.get() == nullptr);
    made.at_least(1).on_change([&](const kolo::Change &change) { changes.push_back(change); });
    // The watcher goes where the group goes.
    auto group = std::move(made);
    EXPECT(made.get() == nullptr);

    group.all_reduce(input, output);
    EXPECT(output[999] == 7 && changes.empty());

    // What a step throws of its own is an error on all, and is not repeated.
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

    // After the limit it is over for all, and the group goes on.
    const auto late = failure([&] {
        group.run([&](const kolo::Communicator &members) { if (first == 0) { members.barrier(); } },
                  std::chrono::milliseconds(300));
    });
    EXPECT(late == KOLO_TIMEOUT || late == KOLO_ABORTED || late == KOLO_REVOKED);
    group.all_reduce(input, output, kolo::Op::sum, std::chrono::minutes(1));
    EXPECT(output[0] == 7);

    // Rank 0, which runs the control plane, ends in the middle of a step.
    changes.clear();
    runs = 0;
    const std::size_t left = group.run([&](const kolo::Communicator &members) {
        runs++;
        if (first == 0) {
            std::_Exit(0);
        }
        members.all_reduce(input, output, kolo::Op::sum);
        return static_cast<std::size_t>(members.size());
    });
    EXPECT(left == 2 && runs == 2 && output[0] == 6);
    EXPECT(changes.size() == 1 && changes[0].left == std::vector<int>{0} && changes[0].came.empty());
    EXPECT(changes[0].size == 2 && changes[0].rank == first - 1);
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
