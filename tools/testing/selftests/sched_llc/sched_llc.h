/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the tests of SHARED_RUNQ and SIS_FILTER share: the switch of a feature,
 * their files, and a load whose tasks are accounted for.
 */
#ifndef _SELFTESTS_SCHED_LLC_H
#define _SELFTESTS_SCHED_LLC_H

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>

#include "kselftest_harness.h"

#define DEBUGFS		"/sys/kernel/debug/sched/"
#define FEATURES	DEBUGFS "features"
#define LAYOUT		DEBUGFS "shared_runq/layout"
#define STATS		DEBUGFS "shared_runq/stats"
#define MASK		DEBUGFS "sis_filter/mask"

/* The feature that a test switches; it may name another one before. */
#ifndef FEATURE
#define FEATURE		"SHARED_RUNQ"
#endif

/*
 * Seconds until a test has failed, and milliseconds that a single wait may
 * take. Neither is a measure of anything: a kernel with all debugging on, in
 * an emulated machine with more CPUs than the host has, needs a tenth of it.
 */
#define TIMEOUT		600
#define PATIENCE	60000

static inline long long now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000LL + ts.tv_nsec / 1000000;
}

/* Polls @cond until it holds; false if it does not within PATIENCE. */
#define poll_until(cond) ({						\
	long long __end = now_ms() + PATIENCE;				\
	bool __ok;							\
									\
	while (!(__ok = (cond)) && now_ms() < __end)			\
		usleep(1000);						\
	__ok;								\
})

/* Reads a file as a string; -1 with errno set if that fails. */
static inline int read_file(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY);
	size_t len = 0;
	ssize_t n;

	if (fd < 0)
		return -1;
	while ((n = read(fd, buf + len, size - 1 - len)) > 0)
		len += n;
	close(fd);
	buf[len] = '\0';
	return n < 0 ? -1 : (int)len;
}

/* Writes a string in one call; -1 with errno set if that fails. */
static inline int write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	ssize_t n;

	if (fd < 0)
		return -1;
	n = write(fd, text, strlen(text));
	close(fd);
	return n == (ssize_t)strlen(text) ? 0 : -1;
}

/* What separates words. */
#define SPACE "\n "

/* Whether a file has a word; false if it cannot be read. */
static inline bool has_word(const char *path, const char *word)
{
	char buf[4096], *at, *save;

	if (read_file(path, buf, sizeof(buf)) < 0)
		return false;
	for (at = strtok_r(buf, SPACE, &save); at;
	     at = strtok_r(NULL, SPACE, &save)) {
		if (!strcmp(at, word))
			return true;
	}
	return false;
}

/* 1 if FEATURE is on, 0 if it is off, -1 if the kernel has not got it. */
static inline int feature(void)
{
	if (has_word(FEATURES, FEATURE))
		return 1;
	return has_word(FEATURES, "NO_" FEATURE) ? 0 : -1;
}

static inline int set_feature(bool on)
{
	return write_file(FEATURES, on ? FEATURE : "NO_" FEATURE);
}

#define DOUBLE_CLOCK	"WARN_DOUBLE_CLOCK"

/*
 * Core scheduling updates the clock of a sibling twice, in any kernel. Returns
 * whether that would have been warned of until now.
 */
static inline bool prepare_core_scheduling(void)
{
	bool warned = has_word(FEATURES, DOUBLE_CLOCK);

	write_file(FEATURES, "NO_" DOUBLE_CLOCK);
	return warned;
}

/* Reads `0-3,8`, up to @end; false if it is not such a list or empty. */
static inline bool parse_cpus(const char *s, char end, cpu_set_t *cpus)
{
	CPU_ZERO(cpus);
	while (isdigit(*s)) {
		unsigned long first, last;
		char *next;

		first = strtoul(s, &next, 10);
		last = first;
		if (*next == '-')
			last = strtoul(next + 1, &next, 10);
		if (last < first || last >= CPU_SETSIZE)
			return false;
		for (; first <= last; first++)
			CPU_SET(first, cpus);
		if (*next == end)
			return true;
		if (*next != ',')
			return false;
		s = next + 1;
	}
	return false;
}

static inline bool read_cpus(const char *path, cpu_set_t *cpus)
{
	char buf[4096];

	return read_file(path, buf, sizeof(buf)) > 0 &&
	       parse_cpus(buf, '\n', cpus);
}

static inline int first_cpu(const cpu_set_t *cpus)
{
	int cpu = 0;

	while (cpu < CPU_SETSIZE && !CPU_ISSET(cpu, cpus))
		cpu++;
	return cpu;
}

static inline int last_cpu(const cpu_set_t *cpus)
{
	int cpu = CPU_SETSIZE - 1;

	while (cpu >= 0 && !CPU_ISSET(cpu, cpus))
		cpu--;
	return cpu;
}

/*
 * Reads the mask of SIS_FILTER: all CPUs in it, and the overloaded ones. False if
 * a line is not as it is documented.
 */
static inline bool read_mask(cpu_set_t *cpus, cpu_set_t *overloaded)
{
	char buf[65536], *line, *save;

	CPU_ZERO(cpus);
	CPU_ZERO(overloaded);
	if (read_file(MASK, buf, sizeof(buf)) < 0)
		return false;
	for (line = strtok_r(buf, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save)) {
		cpu_set_t llc, some, both;
		unsigned int first;
		char *list;
		int at;

		list = strstr(line, " overloaded ");
		if (!list || sscanf(line, "llc %u cpus %n", &first, &at) != 1 ||
		    !parse_cpus(line + at, ' ', &llc))
			return false;
		list += strlen(" overloaded ");
		CPU_ZERO(&some);
		if (*list && !parse_cpus(list, '\0', &some))
			return false;
		/* Only its own CPUs, and each in one LLC. */
		CPU_AND(&both, &some, &llc);
		if (first != (unsigned int)first_cpu(&llc) ||
		    !CPU_EQUAL(&both, &some))
			return false;
		CPU_AND(&both, cpus, &llc);
		if (CPU_COUNT(&both))
			return false;
		CPU_OR(cpus, cpus, &llc);
		CPU_OR(overloaded, overloaded, &some);
	}
	return true;
}

static inline bool mask_is(const cpu_set_t *wanted)
{
	cpu_set_t cpus, overloaded;

	return read_mask(&cpus, &overloaded) && CPU_EQUAL(&overloaded, wanted);
}

static inline bool mask_is_empty(void)
{
	cpu_set_t none;

	CPU_ZERO(&none);
	return mask_is(&none);
}

#define MAX_LINES 256

/* A line of the layout. */
struct shard {
	unsigned int llc;
	unsigned int nr;
	cpu_set_t cpus;
};

/* The number of shards, or -1 if a line is not as it is documented. */
static inline int read_layout(struct shard *shards)
{
	char buf[65536], *line, *save;
	int nr = 0;

	if (read_file(LAYOUT, buf, sizeof(buf)) < 0)
		return -1;
	for (line = strtok_r(buf, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save)) {
		struct shard *s = &shards[nr];
		int at;

		if (nr++ == MAX_LINES ||
		    sscanf(line, "llc %u shard %u cpus%n", &s->llc, &s->nr,
			   &at) != 2 ||
		    line[at] != ' ' ||
		    !parse_cpus(line + at + 1, '\0', &s->cpus))
			return -1;
	}
	return nr;
}

/* How many shards list @cpu; -1 if the layout cannot be read. */
static inline int shards_of(int cpu)
{
	struct shard shards[MAX_LINES];
	int nr = read_layout(shards), found = 0;

	if (nr < 0)
		return -1;
	while (nr--)
		found += CPU_ISSET(cpu, &shards[nr].cpus) != 0;
	return found;
}

/* What is used of the statistics of an LLC. */
struct llc {
	unsigned int first;
	cpu_set_t cpus;
	unsigned int counters;
	unsigned long long pushed;
	unsigned long long pulled;
	unsigned long long scanned;
	/* For any reason. */
	unsigned long long refused;
	unsigned long long refused_affinity;
	unsigned long long linked;
};

/* The number of LLCs, or -1 if a line is not as it is documented. */
static inline int read_stats(struct llc *llcs)
{
	char buf[65536], *line, *save;
	int nr = 0;

	if (read_file(STATS, buf, sizeof(buf)) < 0)
		return -1;
	for (line = strtok_r(buf, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save)) {
		struct llc *llc = &llcs[nr - 1];
		unsigned long long value;
		char name[64];
		int at;

		if (line[0] == ' ') {
			if (!nr || sscanf(line, " %63[a-z_] %llu%n", name,
					  &value, &at) != 2 || line[at])
				return -1;
			llc->counters++;
			if (!strcmp(name, "pushed"))
				llc->pushed = value;
			else if (!strcmp(name, "pulled"))
				llc->pulled = value;
			else if (!strcmp(name, "scanned"))
				llc->scanned = value;
			else if (!strcmp(name, "linked"))
				llc->linked = value;
			else if (!strncmp(name, "refused_", 8))
				llc->refused += value;
			if (!strcmp(name, "refused_affinity"))
				llc->refused_affinity = value;
			continue;
		}
		if (nr++ == MAX_LINES)
			return -1;
		llc++;
		memset(llc, 0, sizeof(*llc));
		if (sscanf(line, "llc %u cpus%n", &llc->first, &at) != 1 ||
		    line[at] != ' ' ||
		    !parse_cpus(line + at + 1, '\0', &llc->cpus))
			return -1;
	}
	return nr;
}

/* The statistics of the LLC of @cpu; all are 0 if it has none. */
static inline struct llc stats_of(int cpu)
{
	struct llc llcs[MAX_LINES], none = { };
	int nr = read_stats(llcs);

	while (nr-- > 0) {
		if (CPU_ISSET(cpu, &llcs[nr].cpus))
			return llcs[nr];
	}
	return none;
}

/* Sum over the LLCs; all counters are 0 if the file cannot be read. */
static inline struct llc sum_stats(void)
{
	struct llc llcs[MAX_LINES], sum = { };
	int nr = read_stats(llcs);

	while (nr-- > 0) {
		sum.pushed += llcs[nr].pushed;
		sum.pulled += llcs[nr].pulled;
		sum.scanned += llcs[nr].scanned;
		sum.refused += llcs[nr].refused;
		sum.refused_affinity += llcs[nr].refused_affinity;
		sum.linked += llcs[nr].linked;
	}
	return sum;
}

/* Lets a task run on one CPU only; 0 is the caller. */
static inline int pin(pid_t pid, int cpu)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	return sched_setaffinity(pid, sizeof(one), &one);
}

/* What the tasks of a load share. */
struct load_shared {
	atomic_bool stop;
	atomic_ulong started;
	atomic_ulong finished;
	/* Exchanges of all pairs. */
	atomic_ulong rounds;
	/* What a task found wrong: how often, and the first. */
	atomic_ulong wrong;
	char first_wrong[128];
};

#define MAX_TASKS 256

struct load {
	struct load_shared *shared;
	/* No task starts before the write end of this pipe is closed. */
	int go[2];
	/* Each task, and each of its children, has the write end of this. */
	int alive[2];
	int nr;
	pid_t pids[MAX_TASKS];
};

static inline void __printf(2, 3)
load_wrong(struct load *load, const char *format, ...)
{
	va_list args;

	if (atomic_fetch_add(&load->shared->wrong, 1))
		return;
	va_start(args, format);
	vsnprintf(load->shared->first_wrong,
		  sizeof(load->shared->first_wrong), format, args);
	va_end(args);
}

static inline bool load_stopped(const struct load *load)
{
	return atomic_load(&load->shared->stop);
}

static inline bool load_init(struct load *load)
{
	load->nr = 0;
	load->shared = mmap(NULL, sizeof(*load->shared),
			    PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return load->shared != MAP_FAILED && !pipe(load->go) &&
	       !pipe(load->alive);
}

/* Adds a task that runs @fn once the load starts; returns it, 0 on failure. */
static inline pid_t load_add(struct load *load,
			     void (*fn)(struct load *load, int arg), int arg)
{
	pid_t pid, parent = getpid();
	char c;

	if (load->nr == MAX_TASKS)
		return 0;
	pid = fork();
	if (pid < 0)
		return 0;
	if (pid) {
		atomic_fetch_add(&load->shared->started, 1);
		load->pids[load->nr++] = pid;
		return pid;
	}
	/* A test that fails must not leave its load behind. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	close(load->go[1]);
	close(load->alive[0]);
	if (read(load->go[0], &c, 1) != 0)
		_exit(1);
	fn(load, arg);
	atomic_fetch_add(&load->shared->finished, 1);
	_exit(0);
}

static inline void load_start(struct load *load)
{
	close(load->go[0]);
	close(load->go[1]);
	close(load->alive[1]);
}

/*
 * Tells the tasks to stop and waits for them. True if each that was started
 * came to its end; a task that is lost on a list never does.
 */
static inline bool load_finish(struct load *load)
{
	struct pollfd alive = { .fd = load->alive[0] };
	bool ok = true;
	int i, status;

	atomic_store(&load->shared->stop, true);
	if (poll(&alive, 1, PATIENCE) != 1) {
		ksft_print_msg("%lu tasks started, %lu finished\n",
			       atomic_load(&load->shared->started),
			       atomic_load(&load->shared->finished));
		return false;
	}
	for (i = 0; i < load->nr; i++) {
		if (waitpid(load->pids[i], &status, 0) != load->pids[i] ||
		    status)
			ok = false;
	}
	close(load->alive[0]);
	return ok && atomic_load(&load->shared->started) ==
		     atomic_load(&load->shared->finished);
}

/*
 * A burst wakes the receiver while the sender goes on, so that both want a CPU
 * at once; its answer makes the sender sleep. This is what hackbench does.
 */
#define BURST 8

static inline void load_sender(struct load *load, int fd)
{
	char c[100] = { };

	while (!load_stopped(load)) {
		for (int i = 0; i < BURST; i++) {
			if (write(fd, c, sizeof(c)) != sizeof(c))
				_exit(1);
		}
		if (read(fd, c, 1) != 1)
			_exit(1);
		atomic_fetch_add(&load->shared->rounds, 1);
	}
	/* Ends the receiver as well. */
	shutdown(fd, SHUT_RDWR);
}

static inline void load_receiver(struct load *load, int fd)
{
	char c[100];
	ssize_t n;

	for (;;) {
		for (int i = 0; i < BURST; i++) {
			n = recv(fd, c, sizeof(c), MSG_WAITALL);
			if (n == 0)
				return;
			if (n != sizeof(c))
				_exit(1);
		}
		/* The sender may have stopped meanwhile. */
		if (send(fd, c, 1, MSG_NOSIGNAL) != 1)
			return;
	}
}

/* Adds a sender and its receiver; false if that fails. */
static inline bool load_add_pair(struct load *load)
{
	int fds[2];
	bool ok;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds))
		return false;
	ok = load_add(load, load_sender, fds[0]) &&
	     load_add(load, load_receiver, fds[1]);
	close(fds[0]);
	close(fds[1]);
	return ok;
}

/* Runs all the time, with a policy that has no parameters. */
static inline void load_spinner(struct load *load, int policy)
{
	const struct sched_param param = { };

	if (sched_setscheduler(0, policy, &param))
		_exit(1);
	while (!load_stopped(load))
		;
}

/* Forks children that end at once. */
static inline void load_forker(struct load *load, int unused)
{
	pid_t pid;

	while (!load_stopped(load)) {
		pid = fork();
		if (pid < 0)
			_exit(1);
		if (!pid) {
			atomic_fetch_add(&load->shared->finished, 1);
			_exit(0);
		}
		atomic_fetch_add(&load->shared->started, 1);
		if (waitpid(pid, NULL, 0) != pid)
			_exit(1);
	}
}

/*
 * The usual load: a pair for each online CPU, so that most wakeups find their
 * CPU busy, and two tasks that fork.
 */
static inline bool load_usual(struct load *load)
{
	long pairs = sysconf(_SC_NPROCESSORS_ONLN);

	if (!load_init(load))
		return false;
	if (pairs > MAX_TASKS / 2 - 1)
		pairs = MAX_TASKS / 2 - 1;
	while (pairs--) {
		if (!load_add_pair(load))
			return false;
	}
	if (!load_add(load, load_forker, 0) || !load_add(load, load_forker, 0))
		return false;
	load_start(load);
	return true;
}

/* What each fixture begins with, and what undoes it. */
static inline void setup(struct __test_metadata *_metadata, int *was_on)
{
	if (geteuid())
		SKIP(return, "needs root");
	if (access(FEATURES, R_OK | W_OK))
		SKIP(return, "no " FEATURES);
	*was_on = feature();
	if (*was_on < 0)
		SKIP(return, "the kernel has no " FEATURE);
}

static inline void skip_without_llc(struct __test_metadata *_metadata)
{
	struct llc llcs[MAX_LINES];

	if (!_metadata->exit_code && !read_stats(llcs))
		SKIP(return, "no CPU shares its last-level cache");
}

static inline void restore(struct __test_metadata *_metadata, int was_on)
{
	EXPECT_EQ(0, set_feature(was_on));
	EXPECT_EQ(was_on, feature());
}

/* All of a load came to its end, and found nothing wrong. */
static inline void expect_finished(struct __test_metadata *_metadata,
				   struct load *load)
{
	EXPECT_TRUE(load_finish(load));
	EXPECT_EQ(0, atomic_load(&load->shared->wrong))
		TH_LOG("%s", load->shared->first_wrong);
}

/* The kernel promises it once the write is done. */
static inline void
expect_off_leaves_nothing(struct __test_metadata *_metadata)
{
	struct llc sum;

	EXPECT_EQ(0, set_feature(false));
	sum = sum_stats();
	EXPECT_EQ(0, sum.linked);
	/* Each look at a task has one outcome, and nobody looks any more. */
	EXPECT_EQ(sum.scanned, sum.pulled + sum.refused);
}

#endif /* _SELFTESTS_SCHED_LLC_H */
