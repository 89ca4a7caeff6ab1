// Uses kolo.hpp as a program would, on three ranks.

#include "test.hpp"

#include <array>
#include <string>
#include <type_traits>
#include <vector>

#if __cplusplus >= 202002L
#include <span>
#endif

static_assert(!std::is_copy_constructible_v<kolo::Communicator> && !std::is_copy_constructible_v<kolo::Request>);
static_assert(std::is_nothrow_move_constructible_v<kolo::Communicator>);
static_assert(kolo::TypeOf<long>::value == kolo::TypeOf<std::int64_t>::value);

/* A send may start from a buffer that is not changed, but not from one that ends with the call. */
template <class B, class = void> constexpr bool can_start_to_send = false;
template <class B>
constexpr bool can_start_to_send<
    B, std::void_t<decltype(std::declval<const kolo::Communicator &>().send_start(std::declval<B>(), 1))>> = true;
static_assert(can_start_to_send<std::vector<float> &> && can_start_to_send<const std::vector<float> &>);
static_assert(!can_start_to_send<std::vector<float>> && !can_start_to_send<const std::vector<float>>);

struct Half {
    std::uint16_t bits;
};
template <> struct kolo::TypeOf<Half> {
    static constexpr koloDataType_t value = KOLO_FLOAT16;
};

static void collectives(const kolo::Communicator &comm) {
    const int rank = comm.rank(), size = comm.size();
    std::vector<float> numbers(1000, static_cast<float>(rank));
    comm.all_reduce(numbers);
    EXPECT(numbers == std::vector<float>(1000, 3.0F));

    long largest = rank;
    comm.all_reduce(largest, kolo::Op::max);
    EXPECT(largest == size - 1);

    const std::array<int, 2> own = {rank, 10 * rank};
    std::vector<int> all(6);
    comm.all_gather(own, all);
    EXPECT((all == std::vector<int>{0, 0, 1, 10, 2, 20}));
    std::array<int, 2> sums{};
    comm.reduce_scatter(all, sums);
    EXPECT(sums[0] == 3 * rank && sums[1] == 30 * rank);
    comm.all_reduce(own, sums);
    EXPECT(sums[0] == 3 && sums[1] == 30);

    double decision[3] = {0.5 * rank, 1, 2};
    comm.broadcast(decision, 1);
    EXPECT(decision[0] == 0.5);
    Half half = {static_cast<std::uint16_t>(rank == 0 ? 0x3c00 : 0)};
    kolo::Span<Half> one(&half, 1);
    comm.broadcast(one, 0);
    EXPECT(half.bits == 0x3c00);

    std::vector<unsigned char> back(rank == 1 ? 3 : 0), byte(1, static_cast<unsigned char>(rank));
    comm.gather(byte, back, 1);
    EXPECT(rank != 1 || (back[0] == 0 && back[2] == 2));
    comm.scatter(back, byte, 1);
    EXPECT(byte[0] == rank);
    std::vector<int> to = {10 * rank, 10 * rank + 1, 10 * rank + 2}, from(3);
    comm.all_to_all(to, from);
    EXPECT((from == std::vector<int>{rank, 10 + rank, 20 + rank}));
    int sum = 1;
    comm.scan(sum);
    EXPECT(sum == rank + 1);
#if __cplusplus >= 202002L
    std::span<float> part(numbers.data(), 10);
    comm.all_reduce(part);
    EXPECT(numbers[9] == 9.0F && numbers[10] == 3.0F);
#endif
}

static void started(const kolo::Communicator &comm) {
    std::vector<double> first(10000, 1.0), second(10, comm.rank());
    auto one = comm.all_reduce_start(first);
    auto two = comm.broadcast_start(second, 2);
    auto barrier = comm.barrier_start();
    barrier.wait();
    one.wait_for(std::chrono::seconds(30));
    EXPECT(first[9999] == 3.0);
    {
        kolo::Request moved = std::move(two);
        // The destructor waits.
    }
    EXPECT(second[0] == 2.0);
    one.wait();
    EXPECT(one.is_done());
}

static void messages(const kolo::Communicator &comm) {
    const int rank = comm.rank(), size = comm.size(), right = (rank + 1) % size, left = (rank + size - 1) % size;
    int came = -1;
    comm.send_recv(rank, right, came, left);
    EXPECT(came == left);
    std::vector<float> out(100, static_cast<float>(rank)), in(100);
    auto receiving = comm.recv_start(in, KOLO_ANY_SOURCE, 7);
    comm.send(out, right, 7);
    EXPECT(receiving.wait_source() == left && in[99] == static_cast<float>(left));
    comm.send(out, right, 8);
    const koloMessage_t message = comm.probe(KOLO_ANY_SOURCE, 8, 8);
    EXPECT(message.source == left && message.tag == 8 && message.bytes == 400 && message.type == KOLO_FLOAT32);
    EXPECT(comm.probe_now(left).has_value() && !comm.probe_now(left, 9).has_value());
    EXPECT(comm.recv(in, message.source, message.tag) == left);
}

static void errors(const kolo::Communicator &comm) {
    std::vector<int> input(4), output(5);
    try {
        comm.all_reduce(input, output, kolo::Op::sum);
        EXPECT(false);
    } catch (const kolo::Error &error) {
        EXPECT(error.result() == KOLO_USAGE && error.code() == "K0101" && error.peer() == -1);
    }
    try {
        comm.broadcast(input, 17);
        EXPECT(false);
    } catch (const std::runtime_error &error) {
        EXPECT(std::string(error.what()).find("17") != std::string::npos);
    }
    EXPECT(comm.error() == KOLO_SUCCESS);
}

// Reads a text that is longer with the second call, and shorter with the third.
static std::string changing() {
    const std::size_t lengths[] = {5000, 6000, 100};
    int calls = 0;
    return kolo::detail::text([&](char *to, std::size_t bytes, std::size_t *needed) {
        const std::string now(lengths[calls++], 'x');
        *needed = now.size() + 1;
        to[now.copy(to, bytes - 1)] = '\0';
        return KOLO_SUCCESS;
    });
}

static void groups(kolo::Communicator &comm) {
    auto half = comm.split(comm.rank() == 0 ? KOLO_NO_COLOR : 1);
    EXPECT(half.has_value() == (comm.rank() != 0));
    if (half) {
        EXPECT(half->size() == 2 && half->rank() == comm.rank() - 1);
        half->barrier();
    }
    auto all = comm.group({2, 1, 0});
    EXPECT(all.rank() == 2 - comm.rank());
    EXPECT(comm.summary().find("rank ") == 0);
    EXPECT(changing() == std::string(100, 'x'));
    // Assignment destroys the old communicator.
    comm = std::move(all);
    comm.barrier();
    auto living = comm.shrink();
    EXPECT(living.size() == comm.size());
    comm.abort("the test is over");
    try {
        comm.barrier();
        EXPECT(false);
    } catch (const kolo::Error &error) {
        EXPECT(error.result() == KOLO_ABORTED && error.code() == "K0701");
    }
    // A limit in the past is over at once. The others wait for a message that never comes.
    std::vector<int> numbers(4);
    const auto late = failure([&] {
        if (living.rank() == 0) {
            living.all_reduce_start(numbers).wait_for(std::chrono::milliseconds(-3));
        } else {
            living.recv(numbers, 0);
        }
    });
    EXPECT(living.rank() == 0 ? late == KOLO_TIMEOUT : late != KOLO_SUCCESS);
}

int main() {
    auto comm = kolo::Communicator::from_env();
    collectives(comm);
    started(comm);
    messages(comm);
    errors(comm);
    groups(comm);
    return 0;
}
