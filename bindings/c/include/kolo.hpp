/*
 * kolo.hpp - Kolo for C++17 and later: the calls of kolo.h with RAII objects, views of containers, and exceptions.
 *
 *     #include <kolo.hpp>
 *
 *     int main() {
 *         auto comm = kolo::Communicator::from_env();
 *         std::vector<float> gradients(1 << 20, 1.0f);
 *         comm.all_reduce(gradients);                              // In place, on every rank.
 *
 *         auto request = comm.all_reduce_start(gradients, kolo::Op::max);
 *         // ... compute ...
 *         request.wait();
 *     }
 *
 * It is header-only: it needs kolo.h beside it and the same library as programs in C.
 *
 * Buffers    A buffer may be a container with data() and size() (std::vector, std::array, std::span), an array, a kolo::Span,
 *            or one number. Elements are integers of 8 to 64 bits, bool, float and double; see TypeOf for others.
 * Lengths    Buffers whose lengths do not fit together (such as an output that is too short) are an Error with KOLO_USAGE, before
 *            anything is sent.
 * Blocking   Calls block until this rank's part is done, except for those that end in _start: see Request.
 * Errors     Every failure is an exception of type kolo::Error. kolo.h says after which errors a communicator cannot be used.
 * Threads    As in kolo.h: threads may share a communicator if all ranks make its calls in the same order.
 */

#ifndef KOLO_HPP
#define KOLO_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kolo.h"

namespace kolo {

/** A failure, with the text of koloGetLastError. */
class Error : public std::runtime_error {
public:
    Error(koloResult_t result, const std::string &text, std::string code, int peer)
        : std::runtime_error(text), result_(result), code_(std::move(code)), peer_(peer) {}

    /** The result of the call, such as KOLO_PEER_LOST. */
    koloResult_t result() const noexcept { return result_; }
    /** The stable code at the end of the text, such as "K0401". */
    const std::string &code() const noexcept { return code_; }
    /** The rank that the error is about; -1 if none. */
    int peer() const noexcept { return peer_; }

private:
    koloResult_t result_;
    std::string code_;
    int peer_;
};

namespace detail {

inline void check(koloResult_t result) {
    if (result != KOLO_SUCCESS) {
        throw Error(result, koloGetLastError(nullptr), koloGetLastErrorCode(nullptr), koloGetLastErrorPeer(nullptr));
    }
}

inline void expect(bool fits, const char *problem) {
    if (!fits) {
        throw Error(KOLO_USAGE, std::string(problem) + " [K0101]", "K0101", -1);
    }
}

/** Returns a text that a call of kolo.h writes. The text may change from one call to the next. */
template <class Call> std::string text(Call &&write) {
    std::string text;
    std::size_t needed = 4096;
    while (needed > text.size()) {
        text.resize(needed);
        check(write(text.data(), text.size(), &needed));
    }
    text.resize(needed - 1);
    return text;
}

/** A time that is over already has no milliseconds left: negative numbers mean other things in kolo.h. */
inline std::int64_t left(std::chrono::milliseconds limit) { return limit.count() < 0 ? 0 : limit.count(); }

template <class T> constexpr koloDataType_t type_of_number() {
    if constexpr (std::is_same_v<T, bool>) {
        static_assert(sizeof(bool) == 1, "a bool is a byte");
        return KOLO_BOOL;
    } else if constexpr (std::is_same_v<T, float>) {
        return KOLO_FLOAT32;
    } else if constexpr (std::is_same_v<T, double>) {
        return KOLO_FLOAT64;
    } else {
        static_assert(std::is_integral_v<T> && sizeof(T) <= 8, "not an element type of Kolo; see kolo::TypeOf");
        constexpr bool is_signed = std::is_signed_v<T>;
        if constexpr (sizeof(T) == 1) {
            return is_signed ? KOLO_INT8 : KOLO_UINT8;
        } else if constexpr (sizeof(T) == 2) {
            return is_signed ? KOLO_INT16 : KOLO_UINT16;
        } else if constexpr (sizeof(T) == 4) {
            return is_signed ? KOLO_INT32 : KOLO_UINT32;
        } else {
            return is_signed ? KOLO_INT64 : KOLO_UINT64;
        }
    }
}

} // namespace detail

/**
 * The Kolo type of an element. Specialise it for your own 16-bit floats:
 *     template <> struct kolo::TypeOf<my::half> { static constexpr koloDataType_t value = KOLO_FLOAT16; };
 */
template <class T> struct TypeOf {
    static constexpr koloDataType_t value = detail::type_of_number<T>();
};

/** The operator of a reduction: see koloRedOp_t. */
enum class Op {
    sum = KOLO_SUM,
    prod = KOLO_PROD,
    min = KOLO_MIN,
    max = KOLO_MAX,
    avg = KOLO_AVG,
    bit_and = KOLO_BIT_AND,
    bit_or = KOLO_BIT_OR,
    bit_xor = KOLO_BIT_XOR,
    logical_and = KOLO_LOGICAL_AND,
    logical_or = KOLO_LOGICAL_OR,
    logical_xor = KOLO_LOGICAL_XOR
};

/** A view of contiguous elements that it does not own. */
template <class T> class Span {
public:
    using element_type = T;

    constexpr Span() noexcept = default;
    constexpr Span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    /** Converts a writable view into a read-only one. */
    template <class U, class = std::enable_if_t<std::is_same_v<const U, T>>>
    constexpr Span(Span<U> other) noexcept : data_(other.data()), size_(other.size()) {}

    constexpr T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }
    constexpr T &operator[](std::size_t at) const noexcept { return data_[at]; }

private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

/** Returns a view of a container, an array or one number. */
template <class B> constexpr auto span(B &buffer) {
    if constexpr (std::is_arithmetic_v<std::remove_const_t<B>>) {
        return Span<B>(&buffer, 1);
    } else {
        return Span<std::remove_pointer_t<decltype(std::data(buffer))>>(std::data(buffer), std::size(buffer));
    }
}

namespace detail {

template <class S> constexpr koloDataType_t type_of(const S &) {
    return TypeOf<std::remove_const_t<typename S::element_type>>::value;
}

template <class A, class B> constexpr void expect_one_type(const A &, const B &) {
    static_assert(std::is_same_v<std::remove_const_t<typename A::element_type>,
                                 std::remove_const_t<typename B::element_type>>,
                  "both buffers must have elements of the same type");
}

/** Returns a view that can be written to; checked at compile time. */
template <class B> auto writable(B &buffer) {
    auto view = span(buffer);
    static_assert(!std::is_const_v<typename decltype(view)::element_type>, "the buffer cannot be written to");
    return view;
}

} // namespace detail

/**
 * An operation in progress. Its buffers must stay, untouched, until wait has returned. The destructor therefore waits too, for at
 * most the communicator's time-out, and drops the result. The operation makes progress even if no thread waits.
 */
class [[nodiscard]] Request {
public:
    Request() noexcept = default;
    Request(Request &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Request &operator=(Request &&other) noexcept {
        if (this != &other) {
            end();
            handle_ = std::exchange(other.handle_, nullptr);
        }
        return *this;
    }
    Request(const Request &) = delete;
    Request &operator=(const Request &) = delete;
    ~Request() { end(); }

    /** Returns whether wait would return at once. Makes a little progress. */
    bool is_done() const {
        int done = 1;
        if (handle_ != nullptr) {
            detail::check(koloTest(handle_, &done));
        }
        return done != 0;
    }

    /** Waits, for at most the communicator's time-out. Returns at once if there is nothing to wait for. */
    void wait() { detail::check(koloWait(&handle_, KOLO_UNSET)); }

    /** Waits for at most `limit`, not at all if it is negative; after that, the communicator is aborted. */
    void wait_for(std::chrono::milliseconds limit) { detail::check(koloWait(&handle_, detail::left(limit))); }

    /** Waits for a message, and returns the rank that sent it. */
    int wait_source() {
        int source = KOLO_ANY_SOURCE;
        detail::check(koloWaitSource(&handle_, KOLO_UNSET, &source));
        return source;
    }

    /** Returns the handle into which a call of kolo.h writes the operation that it starts. Waits for the present one first. */
    koloRequest_t *put() noexcept {
        end();
        return &handle_;
    }

private:
    void end() noexcept {
        if (handle_ != nullptr) {
            koloWait(&handle_, KOLO_UNSET);
        }
    }

    koloRequest_t handle_ = nullptr;
};

/**
 * A group of ranks that communicate. The destructor destroys it, and waits at most 5 s until all sent data has left and, if it is
 * the last one of world rank 0, until the other ranks have said goodbye.
 */
class Communicator {
public:
    Communicator(Communicator &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Communicator &operator=(Communicator &&other) noexcept {
        if (this != &other) {
            koloCommDestroy(&handle_);
            handle_ = std::exchange(other.handle_, nullptr);
        }
        return *this;
    }
    Communicator(const Communicator &) = delete;
    Communicator &operator=(const Communicator &) = delete;
    ~Communicator() { koloCommDestroy(&handle_); }

    /** Takes over a communicator that was made by kolo.h. */
    explicit Communicator(koloComm_t handle) noexcept : handle_(handle) {}

    /** Joins as the launcher's environment says. Blocks until all ranks have joined. */
    static Communicator from_env(const koloConfig_t *config = nullptr) {
        koloComm_t handle = nullptr;
        detail::check(koloCommInitEnv(&handle, config));
        return Communicator(handle);
    }

    /** Joins by URL; if size and rank are not given, they come from the URL or the launcher. Blocks until all ranks have joined. */
    static Communicator from_url(const std::string &url, int size = -1, int rank = -1,
                                 const koloConfig_t *config = nullptr) {
        koloComm_t handle = nullptr;
        detail::check(koloCommInitUrl(&handle, url.c_str(), size, rank, config));
        return Communicator(handle);
    }

    /** Joins by an id of koloGetUniqueId. Blocks until all ranks have joined. */
    static Communicator from_id(const koloUniqueId &id, int size, int rank, const koloConfig_t *config = nullptr) {
        koloComm_t handle = nullptr;
        detail::check(koloCommInitRank(&handle, size, &id, rank, config));
        return Communicator(handle);
    }

    /** Joins a running group by an invitation. Blocks until its members admit this newcomer, or until they are gone. */
    static Communicator from_invitation(const std::string &invitation, int slot = KOLO_UNSET,
                                        std::int64_t wait_ms = KOLO_UNSET, const koloConfig_t *config = nullptr) {
        koloComm_t handle = nullptr;
        detail::check(koloCommInitInvitation(&handle, invitation.c_str(), slot, wait_ms, config));
        return Communicator(handle);
    }

    /** Returns the handle for kolo.h, which this object keeps. */
    koloComm_t get() const noexcept { return handle_; }

    /** Returns the handle for kolo.h and gives it up to the caller. */
    koloComm_t release() noexcept { return std::exchange(handle_, nullptr); }

    int rank() const { return number(koloCommRank); }
    int size() const { return number(koloCommSize); }
    int local_rank() const { return number(koloCommLocalRank); }

    /** Returns one line that says how the other ranks are reached, and why. */
    std::string summary() const {
        return detail::text([this](char *text, std::size_t bytes, std::size_t *needed) {
            return koloCommSummary(handle_, text, bytes, needed);
        });
    }

    /** Makes a communicator of the ranks of each color (0 or more), by key; none for KOLO_NO_COLOR. All ranks call it; blocks. */
    std::optional<Communicator> split(int color, int key = 0) const {
        koloComm_t made = nullptr;
        detail::check(koloCommSplit(handle_, color, key, &made));
        if (made == nullptr) {
            return std::nullopt;
        }
        return Communicator(made);
    }

    /** Makes a communicator of these ranks. Only they call it; blocks. */
    Communicator group(const std::vector<int> &ranks) const {
        koloComm_t made = nullptr;
        detail::check(koloCommGroup(handle_, ranks.data(), ranks.size(), &made));
        return Communicator(made);
    }

    /** Makes a communicator of the live ranks. All of them call it; blocks. */
    Communicator shrink() const {
        koloComm_t made = nullptr;
        detail::check(koloCommShrink(handle_, &made));
        return Communicator(made);
    }

    /** Returns an invitation for newcomers. Any process that has it can join the job, so keep it secret. */
    std::string accept() const {
        return detail::text([this](char *text, std::size_t bytes, std::size_t *needed) {
            return koloCommAccept(handle_, text, bytes, needed);
        });
    }

    /** Returns how many newcomers wait at this rank's port. */
    int waiting() const {
        int count = 0;
        detail::check(koloCommWaiting(handle_, &count));
        return count;
    }

    /** Makes a communicator of the live ranks and of waiting newcomers, at most `most` in all. All live ranks call it; blocks. */
    Communicator grow(int most) const {
        koloComm_t made = nullptr;
        detail::check(koloCommGrow(handle_, most, &made));
        return Communicator(made);
    }

    /** As grow, but newcomers take the slots of ranks that have been lost. */
    Communicator replace() const {
        koloComm_t made = nullptr;
        detail::check(koloCommReplace(handle_, &made));
        return Communicator(made);
    }

    /** Makes all calls on the communicator fail on all ranks, so that the live ones can call shrink. */
    void revoke() const { detail::check(koloCommRevoke(handle_)); }

    /** Aborts the communicator on all ranks, with a reason. */
    void abort(const std::string &reason) const { detail::check(koloCommAbort(handle_, reason.c_str())); }

    /** Returns the error with which the next call would fail; KOLO_SUCCESS while all is well. */
    koloResult_t error() const {
        koloResult_t result = KOLO_SUCCESS;
        detail::check(koloCommGetAsyncError(handle_, &result));
        return result;
    }

    /* ------------------------------------------------------------------------------------------ Collectives -- */

    /** Returns once every rank has called it. */
    void barrier() const { detail::check(koloBarrier(handle_)); }

    /** Every rank gets the reduction over all ranks, in place. */
    template <class B> void all_reduce(B &&buffer, Op op = Op::sum) const {
        auto view = detail::writable(buffer);
        all_reduce(view, view, op);
    }

    /** All-reduces from one buffer into another of the same length. */
    template <class I, class O> auto all_reduce(I &&input, O &&output, Op op = Op::sum) const
        -> std::enable_if_t<!std::is_same_v<std::decay_t<O>, Op>> {
        auto [in, out] = alike(input, output);
        detail::check(koloAllReduce(handle_, in.data(), out.data(), in.size(), detail::type_of(in), c(op)));
    }

    /** The root gets the reduction, in place; the buffers of other ranks are only read. */
    template <class B> void reduce(B &&buffer, int root, Op op = Op::sum) const {
        auto view = detail::writable(buffer);
        detail::check(
            koloReduce(handle_, view.data(), view.data(), view.size(), detail::type_of(view), c(op), root));
    }

    /** Every rank gets the root's elements. */
    template <class B> void broadcast(B &&buffer, int root) const {
        auto view = detail::writable(buffer);
        detail::check(koloBroadcast(handle_, view.data(), view.data(), view.size(), detail::type_of(view), root));
    }

    /** Every rank gets the blocks of all ranks, one after another. */
    template <class I, class O> void all_gather(I &&input, O &&output) const {
        auto in = span(input);
        auto out = blocks(in, output, in.size(), "output has no room for one block per rank");
        detail::check(koloAllGather(handle_, in.data(), out.data(), in.size(), detail::type_of(in)));
    }

    /** The root gets the blocks of all ranks, one after another; output is used on the root only. */
    template <class I, class O> void gather(I &&input, O &&output, int root) const {
        auto in = span(input);
        auto out = detail::writable(output);
        detail::expect_one_type(in, out);
        detail::expect(rank() != root || out.size() == in.size() * ranks(), "output does not hold one block per rank");
        detail::check(koloGather(handle_, in.data(), out.data(), in.size(), detail::type_of(in), root));
    }

    /** Rank r gets the root's block r; input is used on the root only. */
    template <class I, class O> void scatter(I &&input, O &&output, int root) const {
        auto in = span(input);
        auto out = detail::writable(output);
        detail::expect_one_type(in, out);
        detail::expect(rank() != root || in.size() == out.size() * ranks(), "input does not hold one block per rank");
        detail::check(koloScatter(handle_, in.data(), out.data(), out.size(), detail::type_of(in), root));
    }

    /** Rank r gets the reduction of all ranks' blocks r. */
    template <class I, class O> void reduce_scatter(I &&input, O &&output, Op op = Op::sum) const {
        auto in = span(input);
        auto out = detail::writable(output);
        detail::expect_one_type(in, out);
        detail::expect(in.size() == out.size() * ranks(), "input does not hold one block per rank");
        detail::check(koloReduceScatter(handle_, in.data(), out.data(), out.size(), detail::type_of(in), c(op)));
    }

    /** Block s of input goes to rank s, and block r of output comes from rank r. */
    template <class I, class O> void all_to_all(I &&input, O &&output) const {
        auto [in, out] = alike(input, output);
        detail::expect(in.size() % ranks() == 0, "the buffers do not hold one block per rank");
        detail::check(koloAllToAll(handle_, in.data(), out.data(), in.size() / ranks(), detail::type_of(in)));
    }

    /** Rank r gets the reduction over ranks 0 to r, in place. */
    template <class B> void scan(B &&buffer, Op op = Op::sum) const {
        auto view = detail::writable(buffer);
        detail::check(koloScan(handle_, view.data(), view.data(), view.size(), detail::type_of(view), c(op)));
    }

    /** Rank r gets the reduction over ranks 0 to r - 1, in place; rank 0's buffer is unchanged. */
    template <class B> void exscan(B &&buffer, Op op = Op::sum) const {
        auto view = detail::writable(buffer);
        detail::check(koloExScan(handle_, view.data(), view.data(), view.size(), detail::type_of(view), c(op)));
    }

    /* ------------------------------------------------------------------------------------- Started calls -- */

    /** Starts an all-reduce in place; it matches started calls of the other ranks. The buffer must outlive the request. */
    template <class B> Request all_reduce_start(B &buffer, Op op = Op::sum) const {
        auto view = detail::writable(buffer);
        Request request;
        detail::check(koloAllReduceStart(handle_, view.data(), view.data(), view.size(), detail::type_of(view),
                                         c(op), request.put()));
        return request;
    }

    /** Starts a broadcast. The buffer must outlive the request. */
    template <class B> Request broadcast_start(B &buffer, int root) const {
        auto view = detail::writable(buffer);
        Request request;
        detail::check(koloBroadcastStart(handle_, view.data(), view.data(), view.size(), detail::type_of(view),
                                         root, request.put()));
        return request;
    }

    /** Starts an all-gather. Both buffers must outlive the request. */
    template <class I, class O> Request all_gather_start(I &input, O &output) const {
        auto in = span(input);
        auto out = blocks(in, output, in.size(), "output has no room for one block per rank");
        Request request;
        detail::check(koloAllGatherStart(handle_, in.data(), out.data(), in.size(), detail::type_of(in),
                                         request.put()));
        return request;
    }

    /** Starts a barrier. */
    Request barrier_start() const {
        Request request;
        detail::check(koloBarrierStart(handle_, request.put()));
        return request;
    }

    /* ------------------------------------------------------------------------------------------ Messages -- */

    /** Sends to a rank; returns once the buffer may be changed. */
    template <class B> void send(const B &buffer, int to, std::uint32_t tag = 0) const {
        auto view = span(buffer);
        detail::check(koloSendTagged(handle_, view.data(), view.size(), detail::type_of(view), to, tag));
    }

    /** Receives exactly as many elements as the buffer has, from a rank or KOLO_ANY_SOURCE; returns the rank that sent them. */
    template <class B> int recv(B &&buffer, int from, std::uint32_t tag = 0) const {
        auto view = detail::writable(buffer);
        int source = from;
        detail::check(
            koloRecvTagged(handle_, view.data(), view.size(), detail::type_of(view), from, tag, &source));
        return source;
    }

    /**
     * Waits for a message with a tag from `first_tag` to `last_tag`, from a rank or KOLO_ANY_SOURCE, and describes it. The message
     * stays for a receive.
     */
    koloMessage_t probe(int from = KOLO_ANY_SOURCE, std::uint32_t first_tag = 0,
                        std::uint32_t last_tag = UINT32_MAX) const {
        koloMessage_t message = {};
        detail::check(koloProbe(handle_, from, first_tag, last_tag, KOLO_UNSET, &message));
        return message;
    }

    /** As probe, without waiting; none if there is no such message. */
    std::optional<koloMessage_t> probe_now(int from = KOLO_ANY_SOURCE, std::uint32_t first_tag = 0,
                                           std::uint32_t last_tag = UINT32_MAX) const {
        koloMessage_t message = {};
        int found = 0;
        detail::check(koloProbeNow(handle_, from, first_tag, last_tag, &found, &message));
        return found != 0 ? std::optional<koloMessage_t>(message) : std::nullopt;
    }

    /** Sends and receives at the same time, so that a ring of such calls cannot deadlock. */
    template <class I, class O> void send_recv(const I &input, int to, O &&output, int from) const {
        auto in = span(input);
        auto out = detail::writable(output);
        detail::expect_one_type(in, out);
        detail::check(koloSendRecv(handle_, in.data(), in.size(), to, out.data(), out.size(), from,
                                   detail::type_of(in)));
    }

    /** Starts a send. The buffer must outlive the request. */
    template <class B> Request send_start(const B &buffer, int to, std::uint32_t tag = 0) const {
        auto view = span(buffer);
        Request request;
        detail::check(koloSendStart(handle_, view.data(), view.size(), detail::type_of(view), to, tag,
                                    request.put()));
        return request;
    }

    /** A temporary would end before the request. */
    template <class B> Request send_start(const B &&buffer, int to, std::uint32_t tag = 0) const = delete;

    /** Starts a receive, from a rank or KOLO_ANY_SOURCE. The buffer must outlive the request. */
    template <class B> Request recv_start(B &buffer, int from, std::uint32_t tag = 0) const {
        auto view = detail::writable(buffer);
        Request request;
        detail::check(koloRecvStart(handle_, view.data(), view.size(), detail::type_of(view), from, tag,
                                    request.put()));
        return request;
    }

private:
    static constexpr koloRedOp_t c(Op op) noexcept { return static_cast<koloRedOp_t>(op); }

    int number(koloResult_t (*question)(koloComm_t, int *)) const {
        int answer = 0;
        detail::check(question(handle_, &answer));
        return answer;
    }

    std::size_t ranks() const { return static_cast<std::size_t>(size()); }

    /** Returns views of two buffers, which must have the same type and length; the second is writable. */
    template <class I, class O> static auto alike(I &input, O &output) {
        auto in = span(input);
        auto out = detail::writable(output);
        detail::expect_one_type(in, out);
        detail::expect(in.size() == out.size(), "input and output differ in length");
        return std::pair(in, out);
    }

    /** Returns a writable view of a buffer of `count` elements for each rank. */
    template <class S, class O> auto blocks(const S &in, O &output, std::size_t count, const char *problem) const {
        auto out = detail::writable(output);
        detail::expect_one_type(in, out);
        detail::expect(out.size() == count * ranks(), problem);
        return out;
    }

    koloComm_t handle_ = nullptr;
};

/** How the members of a group have changed. */
struct Change {
    /** How many times the members have changed, this change included. */
    std::uint64_t epoch;
    /** The ranks that have left, as numbered in the previous communicator. Empty on a newcomer, which does not know them. */
    std::vector<int> left;
    /** The ranks that have come, as numbered now. */
    std::vector<int> came;
    /** This rank's number now, and the number of ranks. */
    int rank, size;
};

/**
 * A group of ranks that goes on when some of them die. Its steps succeed on all live ranks or on none, and the live ranks repeat a
 * step after a loss. All ranks create one, and make the same calls on it in the same order. See koloSurvivors_t.
 */
class Survivors {
public:
    /** Takes the communicator over; if that fails, the communicator is destroyed. */
    explicit Survivors(Communicator comm) {
        koloComm_t taken = comm.release();
        const koloResult_t result = koloSurvivorsCreate(&taken, &handle_);
        const Communicator rest(taken); // Empty, unless the call has failed; then it destroys the communicator.
        detail::check(result);
    }
    Survivors(Survivors &&other) noexcept
        : handle_(std::exchange(other.handle_, nullptr)), watcher_(std::move(other.watcher_)) {}
    Survivors &operator=(Survivors &&other) noexcept {
        if (this != &other) {
            koloSurvivorsDestroy(&handle_);
            handle_ = std::exchange(other.handle_, nullptr);
            watcher_ = std::move(other.watcher_);
        }
        return *this;
    }
    Survivors(const Survivors &) = delete;
    Survivors &operator=(const Survivors &) = delete;
    ~Survivors() { koloSurvivorsDestroy(&handle_); }

    /** Sets the smallest number of ranks: with fewer, calls fail with KOLO_MINORITY. The same on all ranks. */
    Survivors &at_least(int ranks) {
        detail::check(koloSurvivorsAtLeast(handle_, ranks));
        return *this;
    }

    /** Sets the largest number of ranks to which admit lets the group grow. The same on all ranks, newcomers included. */
    Survivors &up_to(int ranks) {
        detail::check(koloSurvivorsUpTo(handle_, ranks));
        return *this;
    }

    /** Calls `watcher` when the members have changed, before the step begins (again). The watcher must not throw. nullptr removes it. */
    Survivors &on_change(std::function<void(const Change &)> watcher) {
        if (!watcher) {
            detail::check(koloSurvivorsOnChange(handle_, nullptr, nullptr));
            watcher_.reset();
            return *this;
        }
        auto next = std::make_unique<Watcher>(std::move(watcher));
        detail::check(koloSurvivorsOnChange(handle_, tell, next.get()));
        watcher_ = std::move(next);
        return *this;
    }

    /**
     * Calls `step` with the current members until it has succeeded on all that are alive, and returns its value. The step may run again, so it
     * must not change its own inputs: its calls are out of place, or on copies. Its requests must be complete when it returns. With a
     * limit, the step ends on all ranks after that time.
     *
     * Blocks as the step's calls do, and until all members have finished it. Either all live ranks throw, or none does; koloSurvivorsRun lists
     * the errors. If the step throws anything other than kolo::Error, it is not repeated: the exception leaves this call, and the other
     * ranks get KOLO_REVOKED.
     */
    template <class Step>
    auto run(Step &&step, std::optional<std::chrono::milliseconds> limit = std::nullopt)
        -> std::invoke_result_t<Step &, const Communicator &> {
        using Result = std::invoke_result_t<Step &, const Communicator &>;
        if constexpr (std::is_void_v<Result>) {
            run_step([&](const Communicator &comm) { step(comm); }, limit);
        } else {
            std::optional<Result> result;
            run_step([&](const Communicator &comm) { result.emplace(step(comm)); }, limit);
            return std::move(*result);
        }
    }

    /** Runs an all-reduce over the members that are left as a step. */
    template <class I, class O>
    void all_reduce(const I &input, O &&output, Op op = Op::sum,
                    std::optional<std::chrono::milliseconds> limit = std::nullopt) {
        run([&](const Communicator &comm) { comm.all_reduce(input, output, op); }, limit);
    }

    /** Takes in waiting newcomers between two steps, as far as there is room for them. All members call it. */
    void admit() { detail::check(koloSurvivorsAdmit(handle_)); }

    /** Calls `call` with the members of the last step, outside of any step: its calls may fail on some ranks and succeed on others. */
    template <class Call> auto with_members(Call &&call) const {
        koloComm_t members = nullptr;
        detail::check(koloSurvivorsComm(handle_, &members));
        const Lent comm(members);
        return call(comm.get());
    }

    /** Returns the handle for kolo.h, which this object keeps. */
    koloSurvivors_t get() const noexcept { return handle_; }

private:
    using Watcher = std::function<void(const Change &)>;

    /** A view of the group's communicator, which it does not destroy. */
    class Lent {
    public:
        explicit Lent(koloComm_t comm) noexcept : comm_(comm) {}
        Lent(const Lent &) = delete;
        Lent &operator=(const Lent &) = delete;
        ~Lent() { comm_.release(); }
        const Communicator &get() const noexcept { return comm_; }

    private:
        Communicator comm_;
    };

    /** A step, with the exception that it has thrown and its result. */
    struct Running {
        std::function<void(const Communicator &)> step;
        std::exception_ptr thrown;
        koloResult_t result = KOLO_SUCCESS;

        /** Runs the step once. It keeps an exception, since none may pass through C. */
        static koloResult_t once(koloComm_t members, void *context) noexcept {
            auto &running = *static_cast<Running *>(context);
            const Lent comm(members);
            running.thrown = nullptr;
            running.result = KOLO_SUCCESS;
            try {
                running.step(comm.get());
            } catch (const Error &error) {
                running.thrown = std::current_exception();
                running.result = error.result();
            } catch (...) {
                running.thrown = std::current_exception();
                running.result = KOLO_USAGE;
            }
            return running.result;
        }
    };

    void run_step(std::function<void(const Communicator &)> step, std::optional<std::chrono::milliseconds> limit) {
        Running running{std::move(step), nullptr, KOLO_SUCCESS};
        const std::int64_t limit_ms = limit ? detail::left(*limit) : KOLO_UNSET;
        const koloResult_t result = koloSurvivorsRun(handle_, limit_ms, Running::once, &running);
        if (result != KOLO_SUCCESS && result == running.result && running.thrown) {
            std::rethrow_exception(running.thrown);
        }
        detail::check(result);
    }

    static void tell(const koloChange_t *change, void *context) noexcept {
        Change told{change->epoch, {}, {}, change->rank, change->size};
        told.left.assign(change->left, change->left + change->left_count);
        told.came.assign(change->came, change->came + change->came_count);
        (*static_cast<Watcher *>(context))(told);
    }

    koloSurvivors_t handle_ = nullptr;
    std::unique_ptr<Watcher> watcher_;
};

/** Memory that is part of a program's state: a container with data() and size(), or an array, which must outlive this object. */
class Part {
public:
    /** The name and the length are the same on all ranks. The name must outlive this object. */
    template <class C>
    Part(const char *name, C &data) noexcept : part_{name, std::data(data), std::size(data) * sizeof(*std::data(data))} {
        static_assert(std::is_trivially_copyable_v<std::remove_reference_t<decltype(*std::data(data))>>,
                      "an element must be trivially copyable");
    }

private:
    friend class State;
    koloPart_t part_;
};

/** A record of the step that this rank's state belongs to, and of the communicator on which it was last shared. See koloState_t. */
class State {
public:
    /** Creates the state of a program that begins: its version is step 0; a newcomer's state has no version yet. */
    explicit State(const Communicator &comm) { detail::check(koloStateCreate(comm.get(), &handle_)); }

    /** Creates an empty state, into which a newcomer fetches before it joins. */
    State() = default;
    State(State &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    State &operator=(State &&other) noexcept {
        if (this != &other) {
            koloStateDestroy(&handle_);
            handle_ = std::exchange(other.handle_, nullptr);
        }
        return *this;
    }
    State(const State &) = delete;
    State &operator=(const State &) = delete;
    ~State() { koloStateDestroy(&handle_); }

    /** Returns the version: the step that the contents of this rank's memory belong to, if any. */
    std::optional<std::int64_t> version() const {
        std::int64_t version = KOLO_UNSET;
        if (handle_ != nullptr) {
            detail::check(koloStateGetVersion(handle_, &version));
        }
        return version == KOLO_UNSET ? std::nullopt : std::optional(version);
    }

    /** Declares that the memory now belongs to this step. */
    void set_version(std::int64_t version) { detail::check(koloStateSetVersion(handle_, version)); }

    /** Declares that the memory now belongs to the next step. */
    void advance() { detail::check(koloStateAdvance(handle_)); }

    /**
     * Brings all ranks to the latest version: the ranks that have it send it to the others. All ranks call it; blocks as collectives do.
     * Returns the bytes received.
     */
    std::uint64_t share(const Communicator &comm, const std::vector<Part> &parts) {
        std::uint64_t received = 0;
        const auto known = plain(parts);
        detail::check(koloStateShare(handle_, comm.get(), known.data(), known.size(), &received));
        return received;
    }

    /**
     * Copies the state if newcomers ask for it, and serves the copy while the program goes on. Returns whether it has made a copy. All
     * members call it right after Survivors::admit.
     */
    bool offer(const Survivors &group, const std::vector<Part> &parts) {
        int offered = 0;
        const auto known = plain(parts);
        detail::check(koloStateOffer(handle_, group.get(), known.data(), known.size(), &offered));
        return offered != 0;
    }

    /**
     * Fetches a copy of the members' state while they go on. A newcomer calls it before it joins. Blocks for at most `limit`. Returns the
     * bytes received. After an Error, a second call continues where the first ended.
     */
    std::uint64_t fetch(const std::string &invitation, const std::vector<Part> &parts, std::chrono::milliseconds limit) {
        std::uint64_t received = 0;
        const auto known = plain(parts);
        detail::check(
            koloStateFetch(&handle_, invitation.c_str(), detail::left(limit), known.data(), known.size(), &received));
        return received;
    }

    /** Returns the handle for kolo.h, which this object keeps. */
    koloState_t get() const noexcept { return handle_; }

private:
    static std::vector<koloPart_t> plain(const std::vector<Part> &parts) {
        std::vector<koloPart_t> known;
        for (const Part &part : parts) {
            known.push_back(part.part_);
        }
        return known;
    }

    koloState_t handle_ = nullptr;
};

} // namespace kolo

#endif
