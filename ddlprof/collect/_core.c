/* The code that runs at every event of a training, in C: `EventLog` and `LoopWatch`, for the stable ABI of Python 3.10.

ddlprof/collect/python_core.py documents these two and has them in Python, which runs where this file could not be
built. Make every change in both files; tests/property/test_cores.py compares them on random events.

Rare work is done in Python, by a method or by a hook that is None most of the time. The interpreter's lock is held
throughout, so events cannot interleave unless a hook or a clock in Python is called in between. */

#define _GNU_SOURCE
#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>
#include <time.h>
#ifdef __linux__
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/prctl.h>
#endif

enum { /* as ddlprof.model.events.Kind */
    DATA_BEGIN = 0, DATA_END = 1, FORWARD_BEGIN = 3, FORWARD_END = 4, BACKWARD_BEGIN = 5, BACKWARD_END = 6,
    OPTIMIZER_BEGIN = 7, OPTIMIZER_END = 8, GAP = 18, ITERATION = 19, ZERO_GRAD_BEGIN = 21, ZERO_GRAD_END = 22, MOST_KINDS = 64
};
enum { ITERATION_LOADER = 0, ITERATION_FORWARD = 1 }; /* as IterationStart */
enum { NOTHING = -1 };

#define BIT(kind) (1ULL << (kind))
#define BEGINS (BIT(DATA_BEGIN) | BIT(FORWARD_BEGIN) | BIT(BACKWARD_BEGIN) | BIT(OPTIMIZER_BEGIN) | BIT(ZERO_GRAD_BEGIN))
#define ENDS (BIT(DATA_END) | BIT(FORWARD_END) | BIT(BACKWARD_END) | BIT(OPTIMIZER_END) | BIT(ZERO_GRAD_END))
#define IDLE (BIT(DATA_BEGIN) | BIT(DATA_END) | BIT(ZERO_GRAD_BEGIN) | BIT(ZERO_GRAD_END))

#define SMALLEST_GAP_NS 250000
#define HUGE_GAP_NS 50000000
#define HUGE_EARLY_GAP_NS 1000000000
#define LAST_ORDINAL 16

/* -- clocks ------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject *function; /* returns nanoseconds */
    int is_python;      /* it is to be called: not the interpreter's own, which asks the kernel as we do */
} Clock;

static int is_builtin(PyObject *function, const char *wanted)
{
#ifdef __linux__
    if (!PyObject_TypeCheck(function, &PyCFunction_Type))
        return 0;
    PyObject *name = PyObject_GetAttrString(function, "__name__");
    int same = name != NULL && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, wanted) == 0;
    Py_XDECREF(name);
    PyErr_Clear();
    return same;
#else
    return 0;
#endif
}

static void set_clock(Clock *clock, PyObject *function, const char *builtin)
{
    clock->is_python = !is_builtin(function, builtin);
    PyObject *before = clock->function;
    clock->function = Py_NewRef(function);
    Py_XDECREF(before);
}

static long long kernel_ns(clockid_t which)
{
    struct timespec now;
    clock_gettime(which, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* -1 with an exception set where the clock fails. */
static long long clock_ns(const Clock *clock, clockid_t which)
{
    if (!clock->is_python)
        return kernel_ns(which);
    PyObject *now = PyObject_CallNoArgs(clock->function);
    if (now == NULL)
        return -1;
    long long ns = PyLong_AsLongLong(now);
    Py_DECREF(now);
    return ns;
}

static int is_set(PyObject *hook)
{
    return hook != NULL && hook != Py_None;
}

/* Calls a hook, which may take itself away meanwhile, with arguments as of `Py_BuildValue`: a tuple. Returns the truth of
the result, -1 where it raises. */
static int call_hook(PyObject *hook, const char *format, ...)
{
    va_list values;
    Py_INCREF(hook);
    va_start(values, format);
    PyObject *arguments = Py_VaBuildValue(format, values);
    va_end(values);
    PyObject *result = arguments == NULL ? NULL : PyObject_CallObject(hook, arguments);
    Py_DECREF(hook);
    Py_XDECREF(arguments);
    int truth = result == NULL ? -1 : PyObject_IsTrue(result);
    Py_XDECREF(result);
    return truth;
}

/* -- LoopWatch ---------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    Clock wall, cpu;
    PyObject *optimizers, *blocked_at, *open_waiting, *gap;
    long long open_wall_ns, open_cpu_ns;
    int open_by, interrupted, ordinal; /* `open_by`, `interrupted`: a kind, or NOTHING */
    long long updates, look_until, look_next, looks_left;
    char gaps, early, idle, looking, has_clock, in_step, in_forward, in_backward, loader_due, forward_due;
} LoopWatch;

/* Calls a method written in Python and drops what it returns; -1 where it raises. */
static int call_method(void *self, const char *name)
{
    PyObject *result = PyObject_CallMethod((PyObject *)self, name, NULL);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static void close_gap(LoopWatch *self)
{
    self->open_by = NOTHING;
    Py_CLEAR(self->open_waiting);
}

static int is_blocked_at(LoopWatch *self, int kind)
{
    if (PySet_Size(self->blocked_at) == 0)
        return 0;
    PyObject *place = Py_BuildValue("(ii)", kind, self->ordinal);
    int found = place == NULL ? -1 : PySet_Contains(self->blocked_at, place);
    Py_XDECREF(place);
    return found;
}

static int begin_gap(LoopWatch *self, int kind)
{
    if (!self->has_clock) {
        if (call_method(self, "make_clock") < 0)
            return -1;
        if (!self->has_clock) /* there is none: no gaps */
            return 0;
    }
    if (self->ordinal < LAST_ORDINAL)
        self->ordinal++;
    long long cpu_ns = clock_ns(&self->cpu, CLOCK_THREAD_CPUTIME_ID);
    if (cpu_ns == -1 && PyErr_Occurred())
        return -1;
    PyObject *waiting = NULL;
    int blocked = is_blocked_at(self, kind);
    if (blocked < 0)
        return -1;
    if (blocked) {
        waiting = PyObject_CallMethod((PyObject *)self, "read_waiting", "i", kind);
        if (waiting == NULL)
            return -1;
        if (waiting == Py_None) { /* the kernel no longer tells: no gaps */
            Py_DECREF(waiting);
            return 0;
        }
    }
    if (self->looks_left > 0 && self->updates < self->look_until && (kind != OPTIMIZER_END || self->early)
        && call_method(self, "look") < 0) {
        Py_XDECREF(waiting);
        return -1;
    }
    PyObject *before = self->open_waiting;
    self->open_waiting = waiting;
    Py_XDECREF(before);
    self->open_cpu_ns = cpu_ns;
    self->open_wall_ns = clock_ns(&self->wall, CLOCK_MONOTONIC);
    if (self->open_wall_ns == -1 && PyErr_Occurred())
        return -1;
    self->open_by = kind;
    return 0;
}

/* Ends a gap that was not short: what is to be recorded of it, in a new list; NULL where something raises. */
static PyObject *close_long_gap(LoopWatch *self, int kind, long long wall_ns)
{
    if (self->looking || self->open_waiting != NULL)
        return PyObject_CallMethod((PyObject *)self, "close_gap", "iL", kind, wall_ns);
    long long end_ns = clock_ns(&self->cpu, CLOCK_THREAD_CPUTIME_ID), cpu_ns = end_ns - self->open_cpu_ns;
    if (end_ns == -1 && PyErr_Occurred())
        return NULL;
    long long huge_ns = self->early ? HUGE_EARLY_GAP_NS : HUGE_GAP_NS;
    int looks_soon = cpu_ns > SMALLEST_GAP_NS && cpu_ns < huge_ns && self->updates >= self->look_next;
    if (wall_ns - cpu_ns >= SMALLEST_GAP_NS || (looks_soon && (self->open_by != OPTIMIZER_END || self->early)))
        return PyObject_CallMethod((PyObject *)self, "close_gap", "iL", kind, wall_ns);
    PyObject *gap = PyObject_CallFunction(
        self->gap, "(iii)L(Ly)(Ly)O", self->open_by, kind, self->ordinal, wall_ns, self->open_cpu_ns, "", end_ns, "", Py_None);
    close_gap(self);
    return gap == NULL ? NULL : Py_BuildValue("[(iN)]", GAP, gap);
}

static int end_step(LoopWatch *self)
{
    self->in_step = self->in_forward = 0;
    close_gap(self);
    self->interrupted = NOTHING;
    if (self->looking && call_method(self, "close_log") < 0)
        return -1;
    self->ordinal = 0;
    self->updates++;
    self->idle = !(self->loader_due || self->forward_due);
    return 0;
}

/* What is to be recorded before the event, in a new list at `extras`, which stays NULL where that is nothing. Returns
whether a round is the last of it, -1 where something raises. */
static int before_event(LoopWatch *self, int kind, PyObject *a, PyObject **extras)
{
    if (kind == ZERO_GRAD_BEGIN)
        self->interrupted = self->open_by;
    if (self->open_by != NOTHING) {
        long long now = clock_ns(&self->wall, CLOCK_MONOTONIC);
        if (now == -1 && PyErr_Occurred())
            return -1;
        if (now - self->open_wall_ns < SMALLEST_GAP_NS && !self->looking) {
            close_gap(self);
        } else {
            *extras = close_long_gap(self, kind, now - self->open_wall_ns);
            if (*extras == NULL)
                return -1;
        }
    }
    int grad = 0, round = NOTHING;
    if (kind == FORWARD_BEGIN && (grad = PyObject_IsTrue(a)) < 0)
        return -1;
    if (kind == DATA_BEGIN && self->loader_due) {
        self->loader_due = self->forward_due = 0;
        round = ITERATION_LOADER;
    } else if (grad && self->forward_due) {
        self->forward_due = 0;
        round = ITERATION_FORWARD;
    }
    if (round != NOTHING) {
        PyObject *extra = Py_BuildValue("(ii)", ITERATION, round);
        if (extra == NULL || (*extras == NULL && (*extras = PyList_New(0)) == NULL)
            || PyList_Append(*extras, extra) < 0) {
            Py_XDECREF(extra);
            return -1;
        }
        Py_DECREF(extra);
        if (PySet_Size(self->optimizers) == 0 && end_step(self) < 0)
            return -1;
    }
    if (grad || kind == BACKWARD_BEGIN) {
        self->in_step = 1;
        self->idle = 0;
    }
    if (kind == FORWARD_BEGIN)
        self->in_forward = 1;
    else if (kind == BACKWARD_BEGIN)
        self->in_backward = 1;
    return round != NOTHING;
}

static int after_event(LoopWatch *self, int kind, PyObject *a)
{
    if (kind == ZERO_GRAD_END) {
        if (self->interrupted != NOTHING && self->open_by == NOTHING)
            return begin_gap(self, self->interrupted);
        return 0;
    }
    if (kind == OPTIMIZER_END) {
        self->loader_due = self->forward_due = 0;
        /* Whether there is one, and whether there are several, is all that counts. */
        if ((PySet_Size(self->optimizers) < 2 && PySet_Add(self->optimizers, a) < 0) || end_step(self) < 0)
            return -1;
        /* Another one may follow in the same step, or what the loss is computed from. */
        if (self->gaps && (PySet_Size(self->optimizers) > 1 || self->early)) {
            self->idle = 0;
            return begin_gap(self, kind);
        }
        return 0;
    }
    if (kind == BACKWARD_END) {
        self->loader_due = self->forward_due = 1;
        self->in_backward = self->idle = 0;
    } else if (kind == FORWARD_END) {
        self->in_forward = 0;
    }
    int within = self->in_step || (self->early && kind == DATA_END);
    if (within && !self->in_forward && !self->in_backward && self->gaps && self->open_by == NOTHING)
        return begin_gap(self, kind);
    return 0;
}

static PyObject *loop_before(PyObject *self, PyObject *args)
{
    int kind;
    PyObject *a, *extras = NULL;
    if (!PyArg_ParseTuple(args, "iO", &kind, &a))
        return NULL;
    if (before_event((LoopWatch *)self, kind, a, &extras) < 0) {
        Py_XDECREF(extras);
        return NULL;
    }
    return extras != NULL ? extras : PyList_New(0);
}

static PyObject *loop_after(PyObject *self, PyObject *args)
{
    int kind;
    PyObject *a = Py_None;
    if (!PyArg_ParseTuple(args, "i|O", &kind, &a) || after_event((LoopWatch *)self, kind, a) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *loop_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    LoopWatch *self = (LoopWatch *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    self->open_by = self->interrupted = NOTHING;
    self->gaps = self->idle = 1;
    self->wall.function = Py_NewRef(Py_None);
    self->cpu.function = Py_NewRef(Py_None);
    self->optimizers = PySet_New(NULL);
    self->blocked_at = PySet_New(NULL);
    if (self->optimizers == NULL || self->blocked_at == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int loop_traverse(PyObject *object, visitproc visit, void *arg)
{
    LoopWatch *self = (LoopWatch *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->wall.function);
    Py_VISIT(self->cpu.function);
    Py_VISIT(self->optimizers);
    Py_VISIT(self->blocked_at);
    Py_VISIT(self->open_waiting);
    Py_VISIT(self->gap);
    return 0;
}

/* The sets and clocks stay until the object goes: a method may still run, and holds none of the cycles itself. */
static int loop_clear(PyObject *object)
{
    LoopWatch *self = (LoopWatch *)object;
    Py_CLEAR(self->open_waiting);
    return 0;
}

static void free_object(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static void loop_dealloc(PyObject *object)
{
    LoopWatch *self = (LoopWatch *)object;
    PyObject_GC_UnTrack(object);
    Py_CLEAR(self->open_waiting);
    Py_CLEAR(self->gap);
    Py_CLEAR(self->wall.function);
    Py_CLEAR(self->cpu.function);
    Py_CLEAR(self->optimizers);
    Py_CLEAR(self->blocked_at);
    free_object(object);
}

static PyObject *get_wall(PyObject *self, void *closure)
{
    return Py_NewRef(((LoopWatch *)self)->wall.function);
}

static int set_wall(PyObject *self, PyObject *value, void *closure)
{
    set_clock(&((LoopWatch *)self)->wall, value == NULL ? Py_None : value, "perf_counter_ns");
    return 0;
}

static PyObject *get_cpu(PyObject *self, void *closure)
{
    return Py_NewRef(((LoopWatch *)self)->cpu.function);
}

static int set_cpu(PyObject *self, PyObject *value, void *closure)
{
    set_clock(&((LoopWatch *)self)->cpu, value == NULL ? Py_None : value, "thread_time_ns");
    ((LoopWatch *)self)->has_clock = 1;
    return 0;
}

/* The gap that is open: what opened it, when, and the processor time then; None where none is. Setting closes it. */
static PyObject *get_open(PyObject *object, void *closure)
{
    LoopWatch *self = (LoopWatch *)object;
    if (self->open_by == NOTHING)
        Py_RETURN_NONE;
    PyObject *waiting = self->open_waiting;
    if (waiting == NULL)
        return Py_BuildValue("(iL(Ly))", self->open_by, self->open_wall_ns, self->open_cpu_ns, "");
    return Py_BuildValue("(iL(LO))", self->open_by, self->open_wall_ns, self->open_cpu_ns, waiting);
}

static int set_open(PyObject *self, PyObject *value, void *closure)
{
    if (value != Py_None) {
        PyErr_SetString(PyExc_ValueError, "a gap can only be closed");
        return -1;
    }
    close_gap((LoopWatch *)self);
    return 0;
}

#define LOOP(name) offsetof(LoopWatch, name)
static PyMemberDef loop_members[] = {
    {"gaps", T_BOOL, LOOP(gaps), 0, NULL},
    {"early", T_BOOL, LOOP(early), 0, NULL},
    {"idle", T_BOOL, LOOP(idle), 0, NULL},
    {"looking", T_BOOL, LOOP(looking), 0, NULL},
    {"ordinal", T_INT, LOOP(ordinal), 0, NULL},
    {"updates", T_LONGLONG, LOOP(updates), 0, NULL},
    {"look_until", T_LONGLONG, LOOP(look_until), 0, NULL},
    {"look_next", T_LONGLONG, LOOP(look_next), 0, NULL},
    {"looks_left", T_LONGLONG, LOOP(looks_left), 0, NULL},
    {"blocked_at", T_OBJECT, LOOP(blocked_at), READONLY, NULL},
    {"gap", T_OBJECT, LOOP(gap), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef loop_getset[] = {
    {"wall", get_wall, set_wall, NULL, NULL},
    {"cpu", get_cpu, set_cpu, NULL, NULL},
    {"open_gap", get_open, set_open, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMethodDef loop_methods[] = {
    {"before", loop_before, METH_VARARGS, NULL},
    {"after", loop_after, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot loop_slots[] = {
    {Py_tp_new, loop_new},         {Py_tp_dealloc, loop_dealloc}, {Py_tp_traverse, loop_traverse},
    {Py_tp_clear, loop_clear},     {Py_tp_members, loop_members}, {Py_tp_getset, loop_getset},
    {Py_tp_methods, loop_methods}, {0, NULL},
};
static PyType_Spec loop_spec = {
    "ddlprof.collect._core.LoopWatch", sizeof(LoopWatch), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, loop_slots,
};
static PyTypeObject *loop_type;

/* -- EventLog ----------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    Clock clock, cost_clock;
    unsigned long thread;
    unsigned long long unstamped, kinds; /* a bit for each kind */
    long long calls, next_timed, widest_gap, draw, asking_ns, timed_ns, timed, bare_hooks_ns;
    long long boundaries, marks, handed, taken, next_update, chunk_events, most_waiting;
    LoopWatch *loop;
    PyObject *events, *chunks, *rounds, *flags, *flag;
    PyObject *capture, *in_window, *before_waiting, *before_update, *at_update, *bare_hook; /* None: no such hook */
    char active, losing;
} EventLog;

static PyObject *append_name;

static int hand_over(EventLog *self, int boundary)
{
    PyObject *done, *fresh = PyList_New(0), *events = self->events;
    if (fresh == NULL)
        return -1;
    self->events = fresh;
    if (boundary) {
        self->boundaries++;
        self->kinds = 0;
    }
    if (self->losing || self->handed - self->taken >= self->most_waiting) {
        done = PyObject_CallMethod((PyObject *)self, "lose", "OO", events, boundary ? Py_True : Py_False);
    } else {
        self->handed += PyList_Size(events);
        done = PyObject_CallMethodObjArgs(self->chunks, append_name, events, NULL);
    }
    Py_XDECREF(done);
    Py_DECREF(events);
    return done == NULL ? -1 : 0;
}

/* Appends an event, and hands over what is complete. Returns whether a step ended, -1 where something raises. */
static int record(EventLog *self, int kind, PyObject *a, PyObject *b, PyObject *c)
{
    PyObject *stamp, *number = PyLong_FromLong(kind);
    if (self->unstamped & BIT(kind))
        stamp = Py_NewRef(Py_None);
    else if (self->clock.is_python)
        stamp = PyObject_CallNoArgs(self->clock.function);
    else
        stamp = PyLong_FromLongLong(kernel_ns(CLOCK_MONOTONIC));
    PyObject *event = number == NULL || stamp == NULL ? NULL : PyTuple_Pack(5, number, stamp, a, b, c);
    Py_XDECREF(number);
    Py_XDECREF(stamp);
    if (event == NULL)
        return -1;
    int failed = PyList_Append(self->events, event);
    Py_DECREF(event);
    if (failed)
        return -1;
    self->kinds |= BIT(kind);
    if (kind == OPTIMIZER_END || kind == ITERATION) {
        self->marks++;
        int over = kind == OPTIMIZER_END ? 1 : PyObject_RichCompareBool(a, self->rounds, Py_EQ);
        if (over < 0 || ((over || !self->boundaries) && hand_over(self, over) < 0))
            return -1;
        return over;
    }
    if (PyList_Size(self->events) >= self->chunk_events)
        return hand_over(self, 0);
    return 0;
}

static int record_extras(EventLog *self, PyObject *extras)
{
    int over = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(extras); i++) {
        PyObject *extra = PyList_GetItem(extras, i);
        int ended = record(self, (int)PyLong_AsLong(PyTuple_GetItem(extra, 0)), PyTuple_GetItem(extra, 1), Py_None, Py_None);
        if (ended < 0)
            return -1;
        over |= ended;
    }
    return over;
}

/* As SampledCost: the next call that is timed is drawn by a generator of our own. */
static int begin_timing(EventLog *self, long long *begin)
{
    self->draw = (self->draw * 1103515245LL + 12345) & 0x7FFFFFFF;
    self->next_timed = self->calls + 1 + (self->draw >> 8) % (self->widest_gap > 0 ? self->widest_gap : 1);
    long long before = clock_ns(&self->cost_clock, CLOCK_THREAD_CPUTIME_ID);
    if (before == -1 && PyErr_Occurred())
        return -1;
    *begin = clock_ns(&self->cost_clock, CLOCK_THREAD_CPUTIME_ID);
    self->asking_ns = *begin - before; /* what asking takes, with the caches as they are now */
    return PyErr_Occurred() ? -1 : 0;
}

static int end_timing(EventLog *self, long long begin)
{
    long long now = clock_ns(&self->cost_clock, CLOCK_THREAD_CPUTIME_ID);
    if (now == -1 && PyErr_Occurred())
        return -1;
    self->timed_ns += now - begin - self->asking_ns;
    self->timed++;
    if (!is_set(self->bare_hook))
        return 0;
    if (call_hook(self->bare_hook, "()") < 0)
        return -1;
    long long after = clock_ns(&self->cost_clock, CLOCK_THREAD_CPUTIME_ID);
    if (after == -1 && PyErr_Occurred())
        return -1;
    self->bare_hooks_ns += after - now - self->asking_ns;
    return 0;
}

/* 1: recorded; -1: something raised. */
static int emit(EventLog *self, LoopWatch *loop, int kind, PyObject *a, PyObject *b, PyObject *c, int watched)
{
    PyObject *extras = NULL;
    long long begin = 0;
    unsigned long long bit = BIT(kind);
    int round = 0, over = 0, ended;
    if (is_set(self->capture) && (ended = call_hook(self->capture, "(iOOO)", kind, a, b, c)) != 0)
        return ended;
    if (watched && is_set(self->in_window) && call_hook(self->in_window, "()") < 0)
        return -1;
    if ((bit & (BIT(DATA_BEGIN) | BIT(BACKWARD_BEGIN))) && is_set(self->before_waiting)
        && call_hook(self->before_waiting, "(i)", kind) < 0)
        return -1;
    int timed = ++self->calls >= self->next_timed;
    if (timed && begin_timing(self, &begin) < 0)
        return -1;
    if (!watched || (loop->idle && (bit & IDLE)))
        bit = 0;
    if ((bit & BEGINS) && (round = before_event(loop, kind, a, &extras)) < 0)
        goto failed;
    if ((kind == OPTIMIZER_END || round) && is_set(self->before_update)
        && call_hook(self->before_update, "()") < 0)
        goto failed;
    if (extras != NULL && (over = record_extras(self, extras)) < 0)
        goto failed;
    Py_CLEAR(extras);
    if ((ended = record(self, kind, a, b, c)) < 0)
        goto failed;
    over |= ended;
    if ((bit & ENDS) && after_event(loop, kind, a) < 0)
        goto failed;
    if (timed && end_timing(self, begin) < 0)
        return -1;
    if (over && self->boundaries >= self->next_update && is_set(self->at_update)
        && call_hook(self->at_update, "(L)", self->boundaries) < 0)
        return -1;
    return 1;
failed:
    Py_XDECREF(extras);
    return -1;
}

/* Hands an error to `fail` in Python, which ends the recording; what is no Exception, as KeyboardInterrupt, goes on. */
static PyObject *fail(EventLog *self)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return NULL;
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    PyObject *result = PyObject_CallMethod((PyObject *)self, "fail", "O", error);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    if (result == NULL)
        return NULL;
    Py_DECREF(result);
    Py_RETURN_FALSE;
}

static PyObject *emit_arguments(EventLog *self, PyObject *const *args, Py_ssize_t count, int watched)
{
    if (count < 1 || count > 4) {
        PyErr_SetString(PyExc_TypeError, "an event has a kind and up to three values");
        return NULL;
    }
    if (self->loop == NULL) {
        PyErr_SetString(PyExc_AttributeError, "loop");
        return NULL;
    }
    if (watched && PyThread_get_thread_ident() != self->thread)
        Py_RETURN_FALSE;
    if (!self->active) {
        if (watched && self->loop->looking && call_method(self->loop, "close_log") < 0)
            return NULL;
        Py_RETURN_FALSE;
    }
    if (is_set(self->flags) && PyDict_GetItemWithError(self->flags, self->flag) == Py_True)
        Py_RETURN_FALSE;
    long kind = PyLong_AsLong(args[0]);
    if (kind < 0 || kind >= MOST_KINDS) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "no kind of an event");
        return fail(self);
    }
    PyObject *a = count > 1 ? args[1] : Py_None, *b = count > 2 ? args[2] : Py_None, *c = count > 3 ? args[3] : Py_None;
    LoopWatch *loop = self->loop;
    Py_INCREF(loop);
    int recorded = emit(self, loop, (int)kind, a, b, c, watched);
    Py_DECREF(loop);
    if (recorded < 0)
        return fail(self);
    Py_RETURN_TRUE;
}

static PyObject *log_emit(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    return emit_arguments((EventLog *)self, args, count, 1);
}

static PyObject *log_emit_in_backward(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    return emit_arguments((EventLog *)self, args, count, 0);
}

static PyObject *log_listens(PyObject *object, PyObject *unused)
{
    EventLog *self = (EventLog *)object;
    return PyBool_FromLong(self->active && PyThread_get_thread_ident() == self->thread);
}

static PyObject *log_holds(PyObject *self, PyObject *kind)
{
    long number = PyLong_AsLong(kind);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(number >= 0 && number < MOST_KINDS && (((EventLog *)self)->kinds & BIT(number)) != 0);
}

static PyObject *log_take_rest(PyObject *object, PyObject *unused)
{
    EventLog *self = (EventLog *)object;
    PyObject *fresh = PyList_New(0), *events = self->events;
    if (fresh == NULL)
        return NULL;
    self->events = fresh;
    return events;
}

static PyObject *log_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    EventLog *self = (EventLog *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    self->active = 1;
    self->next_timed = 2;
    self->widest_gap = self->draw = 1;
    self->chunk_events = self->most_waiting = PY_SSIZE_T_MAX;
    self->clock.function = Py_NewRef(Py_None);
    self->cost_clock.function = Py_NewRef(Py_None);
    self->clock.is_python = self->cost_clock.is_python = 1;
    self->thread = PyThread_get_thread_ident();
    self->chunks = Py_NewRef(Py_None);
    self->rounds = Py_NewRef(Py_None);
    self->events = PyList_New(0);
    if (self->events == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

#define EACH_OBJECT(DO)                                                                                               \
    DO(self->clock.function);                                                                                         \
    DO(self->cost_clock.function);                                                                                    \
    DO(self->loop);                                                                                                   \
    DO(self->events);                                                                                                 \
    DO(self->chunks);                                                                                                 \
    DO(self->rounds);                                                                                                 \
    DO(self->flags);                                                                                                  \
    DO(self->flag);                                                                                                   \
    EACH_HOOK(DO)
#define EACH_HOOK(DO)                                                                                                 \
    DO(self->capture);                                                                                                \
    DO(self->in_window);                                                                                              \
    DO(self->before_waiting);                                                                                         \
    DO(self->before_update);                                                                                          \
    DO(self->at_update);                                                                                              \
    DO(self->bare_hook)

static int log_traverse(PyObject *object, visitproc visit, void *arg)
{
    EventLog *self = (EventLog *)object;
    Py_VISIT(Py_TYPE(object));
    EACH_OBJECT(Py_VISIT);
    return 0;
}

/* Cycles go through hooks. The rest stays, as `emit` needs it, until the object itself goes. */
static int log_clear(PyObject *object)
{
    EventLog *self = (EventLog *)object;
    EACH_HOOK(Py_CLEAR);
    return 0;
}

static void log_dealloc(PyObject *object)
{
    EventLog *self = (EventLog *)object;
    PyObject_GC_UnTrack(object);
    EACH_OBJECT(Py_CLEAR);
    free_object(object);
}

static PyObject *get_clock(PyObject *self, void *closure)
{
    return Py_NewRef(((EventLog *)self)->clock.function);
}

static int set_log_clock(PyObject *self, PyObject *value, void *closure)
{
    set_clock(&((EventLog *)self)->clock, value == NULL ? Py_None : value, "perf_counter_ns");
    return 0;
}

static PyObject *get_cost_clock(PyObject *self, void *closure)
{
    return Py_NewRef(((EventLog *)self)->cost_clock.function);
}

static int set_cost_clock(PyObject *self, PyObject *value, void *closure)
{
    set_clock(&((EventLog *)self)->cost_clock, value == NULL ? Py_None : value, "thread_time_ns");
    return 0;
}

static PyObject *get_loop(PyObject *self, void *closure)
{
    PyObject *loop = (PyObject *)((EventLog *)self)->loop;
    return Py_NewRef(loop != NULL ? loop : Py_None);
}

static int set_loop(PyObject *self, PyObject *value, void *closure)
{
    if (value == NULL || !PyObject_TypeCheck(value, loop_type)) {
        PyErr_SetString(PyExc_TypeError, "not a LoopWatch");
        return -1;
    }
    PyObject *before = (PyObject *)((EventLog *)self)->loop;
    ((EventLog *)self)->loop = (LoopWatch *)Py_NewRef(value);
    Py_XDECREF(before);
    return 0;
}

#define LOG(name) offsetof(EventLog, name)
static PyMemberDef log_members[] = {
    {"active", T_BOOL, LOG(active), 0, NULL},
    {"thread", T_ULONG, LOG(thread), 0, NULL},
    {"calls", T_LONGLONG, LOG(calls), 0, NULL},
    {"next_timed", T_LONGLONG, LOG(next_timed), READONLY, NULL},
    {"widest_gap", T_LONGLONG, LOG(widest_gap), 0, NULL},
    {"timed_ns", T_LONGLONG, LOG(timed_ns), READONLY, NULL},
    {"timed", T_LONGLONG, LOG(timed), READONLY, NULL},
    {"bare_hooks_ns", T_LONGLONG, LOG(bare_hooks_ns), READONLY, NULL},
    {"boundaries", T_LONGLONG, LOG(boundaries), 0, NULL},
    {"marks", T_LONGLONG, LOG(marks), 0, NULL},
    {"handed", T_LONGLONG, LOG(handed), 0, NULL},
    {"taken", T_LONGLONG, LOG(taken), 0, NULL},
    {"losing", T_BOOL, LOG(losing), 0, NULL},
    {"next_update", T_LONGLONG, LOG(next_update), 0, NULL},
    {"chunk_events", T_LONGLONG, LOG(chunk_events), 0, NULL},
    {"most_waiting", T_LONGLONG, LOG(most_waiting), 0, NULL},
    {"chunks", T_OBJECT, LOG(chunks), 0, NULL},
    {"rounds", T_OBJECT, LOG(rounds), 0, NULL},
    {"flags", T_OBJECT, LOG(flags), 0, NULL},
    {"flag", T_OBJECT, LOG(flag), 0, NULL},
    {"capture", T_OBJECT, LOG(capture), 0, NULL},
    {"in_window", T_OBJECT, LOG(in_window), 0, NULL},
    {"before_waiting", T_OBJECT, LOG(before_waiting), 0, NULL},
    {"before_update", T_OBJECT, LOG(before_update), 0, NULL},
    {"at_update", T_OBJECT, LOG(at_update), 0, NULL},
    {"bare_hook", T_OBJECT, LOG(bare_hook), 0, NULL},
    {"events", T_OBJECT, LOG(events), READONLY, NULL},
    {"unstamped_bits", T_ULONGLONG, LOG(unstamped), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef log_getset[] = {
    {"clock", get_clock, set_log_clock, NULL, NULL},
    {"cost_clock", get_cost_clock, set_cost_clock, NULL, NULL},
    {"loop", get_loop, set_loop, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMethodDef log_methods[] = {
    {"emit", (PyCFunction)(void (*)(void))log_emit, METH_FASTCALL, NULL},
    {"emit_in_backward", (PyCFunction)(void (*)(void))log_emit_in_backward, METH_FASTCALL, NULL},
    {"listens", log_listens, METH_NOARGS, NULL},
    {"holds", log_holds, METH_O, NULL},
    {"take_rest", log_take_rest, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot log_slots[] = {
    {Py_tp_new, log_new},         {Py_tp_dealloc, log_dealloc}, {Py_tp_traverse, log_traverse},
    {Py_tp_clear, log_clear},     {Py_tp_members, log_members}, {Py_tp_getset, log_getset},
    {Py_tp_methods, log_methods}, {0, NULL},
};
static PyType_Spec log_spec = {
    "ddlprof.collect._core.EventLog", sizeof(EventLog), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, log_slots,
};
static PyTypeObject *log_type;

/* -- batches ------------------------------------------------------------------------------------------------------ */

static PyObject *tensor_type, *count_modes;

enum { MOST_ITEMS = 32 };

static PyObject *set_tensor(PyObject *module, PyObject *args)
{
    PyObject *tensor, *modes;
    if (!PyArg_ParseTuple(args, "OO", &tensor, &modes))
        return NULL;
    Py_XDECREF(tensor_type);
    Py_XDECREF(count_modes);
    tensor_type = Py_NewRef(tensor);
    count_modes = Py_NewRef(modes);
    Py_RETURN_NONE;
}

/* Whether a part of a batch is a plain tensor; sets `*size` where it has a dimension and none before it had. An exception
may be set where the answer is no. */
static int look_at(PyObject *part, PyObject **size)
{
    if ((PyObject *)Py_TYPE(part) != tensor_type)
        return 0;
    PyObject *nested = PyObject_GetAttrString(part, "is_nested");
    int is_plain = nested == Py_False;
    Py_XDECREF(nested);
    if (!is_plain || *size != NULL)
        return is_plain;
    PyObject *shape = PyObject_GetAttrString(part, "shape");
    Py_ssize_t dimensions = shape == NULL ? -1 : PyObject_Size(shape);
    if (dimensions > 0)
        *size = PySequence_GetItem(shape, 0);
    Py_XDECREF(shape);
    return dimensions == 0 || *size != NULL;
}

static PyObject *plain_size(PyObject *module, PyObject *batch)
{
    PyObject *size = NULL, *key, *part;
    PyObject *modes = tensor_type == NULL ? NULL : PyObject_CallNoArgs(count_modes);
    int plain = modes != NULL && !PyObject_IsTrue(modes);
    Py_ssize_t i = 0;
    Py_XDECREF(modes);
    if (!plain) {
    } else if (Py_TYPE(batch) == &PyTuple_Type) {
        plain = PyTuple_Size(batch) <= MOST_ITEMS;
        for (; plain && i < PyTuple_Size(batch); i++)
            plain = look_at(PyTuple_GetItem(batch, i), &size);
    } else if (Py_TYPE(batch) == &PyList_Type) {
        plain = PyList_Size(batch) <= MOST_ITEMS;
        for (; plain && i < PyList_Size(batch); i++)
            plain = look_at(PyList_GetItem(batch, i), &size);
    } else if (Py_TYPE(batch) == &PyDict_Type) {
        plain = PyDict_Size(batch) <= MOST_ITEMS;
        while (plain && PyDict_Next(batch, &i, &key, &part))
            plain = look_at(part, &size);
    } else {
        plain = look_at(batch, &size);
    }
    if (plain && size != NULL)
        return size;
    Py_XDECREF(size);
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* -- pauses of the garbage collector ------------------------------------------------------------------------------ */

static struct {
    long long begun_ns, number, total_ns, longest_ns, full;
} pauses; /* the collector is the process's, too */

/* A callback of the collector. One in Python would be where a signal is handled that came during a collection, and the
collector drops what its callbacks raise: also the KeyboardInterrupt. */
static PyObject *at_collection(PyObject *module, PyObject *arguments)
{
    const char *phase = NULL;
    PyObject *info = NULL;
    if (!PyArg_ParseTuple(arguments, "sO!", &phase, &PyDict_Type, &info))
        return NULL;
    long long now = kernel_ns(CLOCK_MONOTONIC);
    if (strcmp(phase, "start") == 0) {
        pauses.begun_ns = now;
    } else if (pauses.begun_ns) {
        long long pause = now - pauses.begun_ns;
        PyObject *generation = PyDict_GetItemString(info, "generation");
        pauses.begun_ns = 0;
        pauses.number++;
        pauses.total_ns += pause;
        if (pause > pauses.longest_ns)
            pauses.longest_ns = pause;
        pauses.full += generation != NULL && PyLong_AsLong(generation) == 2;
    }
    Py_RETURN_NONE;
}

static PyObject *collections(PyObject *module, PyObject *unused)
{
    return Py_BuildValue("(LLLL)", pauses.number, pauses.total_ns, pauses.longest_ns, pauses.full);
}

static PyObject *forget_collections(PyObject *module, PyObject *unused)
{
    memset(&pauses, 0, sizeof(pauses));
    Py_RETURN_NONE;
}

/* -- the helper thread's naps -------------------------------------------------------------------------------------- */

#define HAND_OVER_US 1000 /* the longest time for which the main thread stands still for a look */
#define SHORT_US 20       /* the time after which a look insists on the lock, in place of the interpreter's 5 ms */
#define TOLD_US 500      /* the time after which the main thread has been told */
#define WAIVED 10         /* naps after which nothing is asked, as the helper got no processor in that time */

static PyThread_type_lock bell, taken; /* both held: by nobody in particular */
static volatile int rung, asked, queued, parked, waived;

/* Before Python 3.13 the main thread is not told of a call that another thread leaves for it: it finds the call when it
next takes the lock, so after one that lets it go, and there the thread that waits for the lock gets in first. Looks
would fall on such calls only, whatever else takes the time. A thread that has waited for the switch interval does tell
it, so the interval is short when a look begins to wait. In 3.12 it can only be set with the lock in hand. The main thread
is told once for all: where it is in a long call that keeps the lock, the thread that waits would go on waking up every
20 microseconds and make that call slower. So another thread, which never has the lock, makes the interval long again. */
#ifdef __linux__
static void (*set_interval)(unsigned long);
static unsigned long (*get_interval)(void);
static volatile unsigned long usual; /* the interval, while it is short; else 0 */
static sem_t shortened;
static volatile int lengthens; /* whether there is that thread */

static void lengthen(void)
{
    unsigned long was = usual;
    if (was && get_interval() == SHORT_US) /* else somebody has set another one */
        set_interval(was);
    usual = 0;
}

static void *lengthen_soon(void *unused)
{
    const struct timespec told = {0, 1000 * TOLD_US};
    for (;;)
        if (sem_wait(&shortened) == 0) {
            nanosleep(&told, NULL);
            lengthen();
        }
    return NULL;
}

static void shorten(void)
{
    unsigned long now = set_interval != NULL && !usual ? get_interval() : 0;
    if (now <= SHORT_US)
        return;
    if (!lengthens) {
        pthread_t thread;
        sigset_t all, before;
        sigfillset(&all); /* signals are for the threads of the user */
        pthread_sigmask(SIG_SETMASK, &all, &before);
        lengthens = sem_init(&shortened, 0, 0) == 0 && pthread_create(&thread, NULL, lengthen_soon, NULL) == 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (!lengthens)
            return;
        pthread_detach(thread);
        prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL); /* the kernel would make SHORT_US some 50 longer */
    }
    usual = now;
    set_interval(SHORT_US);
    sem_post(&shortened);
}

/* Of the threads of a process, only the one that forks is in the child. */
static void in_child(void)
{
    lengthen();
    lengthens = asked = parked = waived = 0;
}

static void find_interval(void)
{
    PyObject *version = PySys_GetObject("hexversion");
    if (version == NULL || PyLong_AsLong(version) >= 0x030c0000)
        return;
    void *set = dlsym(RTLD_DEFAULT, "_PyEval_SetSwitchInterval"), *get = dlsym(RTLD_DEFAULT, "_PyEval_GetSwitchInterval");
    if (set != NULL && get != NULL && pthread_atfork(NULL, NULL, in_child) == 0) {
        memcpy(&get_interval, &get, sizeof get);
        memcpy(&set_interval, &set, sizeof set);
    }
}
#else
static void lengthen(void) {}
static void shorten(void) {}
static void find_interval(void) {}
#endif

/* Runs in the main thread, between two instructions of Python code, as a switch of threads would. */
static int hand_over_lock(void *unused)
{
    queued = 0;
    if (!asked)
        return 0;
    parked = 1;
    PyLockStatus status;
    Py_BEGIN_ALLOW_THREADS
    status = PyThread_acquire_lock_timed(taken, HAND_OVER_US, 0);
    Py_END_ALLOW_THREADS
    if (status != PY_LOCK_ACQUIRED) {
        waived = WAIVED;
        if (!parked) /* it came too late */
            PyThread_acquire_lock(taken, NOWAIT_LOCK);
    }
    parked = 0;
    return 0;
}

/* nap(us, look): waits until `wake` was called, or for this time. `look`: asks the main thread for the interpreter's lock
then. Without that, a thread that lets it go for moments all the time, as small operators do, would keep it for seconds:
each moment wakes the waiting thread and is over before that runs, and its 5 ms begin anew. */
static PyObject *nap(PyObject *module, PyObject *arguments)
{
    long long us;
    int look;
    if (!PyArg_ParseTuple(arguments, "Lp", &us, &look))
        return NULL;
    PyLockStatus status;
    Py_BEGIN_ALLOW_THREADS
    status = PyThread_acquire_lock_timed(bell, us, 0);
    if (status != PY_LOCK_ACQUIRED && look) {
        if (waived) {
            waived--;
        } else if (!queued && Py_IsInitialized()) { /* it goes on to its end without this thread */
            asked = queued = 1;
            if (Py_AddPendingCall(hand_over_lock, NULL) < 0)
                queued = 0;
            shorten();
        }
    }
    Py_END_ALLOW_THREADS
    lengthen();
    asked = 0;
    if (parked) {
        parked = 0;
        PyThread_release_lock(taken);
    }
    if (status == PY_LOCK_ACQUIRED)
        rung = 0;
    Py_RETURN_NONE;
}

/* Ends the nap under way, or the next one. */
static PyObject *wake(PyObject *module, PyObject *unused)
{
    if (!rung) {
        rung = 1;
        PyThread_release_lock(bell);
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"at_collection", at_collection, METH_VARARGS, NULL},
    {"collections", collections, METH_NOARGS, NULL},
    {"forget_collections", forget_collections, METH_NOARGS, NULL},
    {"nap", nap, METH_VARARGS, NULL},
    {"plain_size", plain_size, METH_O, NULL},
    {"set_tensor", set_tensor, METH_VARARGS, NULL},
    {"wake", wake, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module_definition = {PyModuleDef_HEAD_INIT, "_core", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void)
{
    PyObject *module = PyModule_Create(&module_definition);
    loop_type = (PyTypeObject *)PyType_FromSpec(&loop_spec);
    log_type = (PyTypeObject *)PyType_FromSpec(&log_spec);
    append_name = PyUnicode_InternFromString("append");
    find_interval();
    bell = PyThread_allocate_lock();
    taken = PyThread_allocate_lock();
    PyObject *source = PyLong_FromLongLong(SOURCE); /* kept, as the types are */
    if (module == NULL || source == NULL || loop_type == NULL || log_type == NULL || append_name == NULL
        || bell == NULL || taken == NULL || !PyThread_acquire_lock(bell, NOWAIT_LOCK)
        || !PyThread_acquire_lock(taken, NOWAIT_LOCK)
        || PyModule_AddObjectRef(module, "LoopWatch", (PyObject *)loop_type) < 0
        || PyModule_AddObjectRef(module, "EventLog", (PyObject *)log_type) < 0
        || PyModule_AddObjectRef(module, "SOURCE", source) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
