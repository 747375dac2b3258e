; Written by veriep_verify::smt::obligation::theorem_file; a test keeps it so. Run: z3 verify/smt/epochs.smt2
; Any number of ranks: between two uses of a slot the rank that writes it next has waited for its owner.
; A slot (s, j) is a flag word of rank s and the rows it covers; operators n are numbered as every rank runs them.
; The answer to every question is unsat.

(declare-sort Rank 0)
(declare-sort Slot 0)
(declare-fun expects (Rank Slot Int) Bool) ; rank s ends operator n only after it has the flag in its slot j
(declare-fun source (Rank Slot Int) Rank) ; who sends that flag
(declare-fun carries (Rank Slot Int) Bool) ; and whether rows come with it
(declare-fun quiets (Rank Slot Int) Bool) ; and whether its sender is quiet before it sends it
(declare-fun behind (Rank Slot Int Slot) Bool) ; its sender sends both after it took that flag of its own in n
(declare-fun reuse (Rank Slot Int Int) Bool) ; operator n uses the slot of the earlier operator m
(declare-fun gate (Rank Slot Int Int) Int)
(declare-fun told (Rank Slot Int Int) Slot)
(assert (forall ((s Rank) (j Slot) (m Int) (n Int))
  (=> (and (<= 0 m) (reuse s j m n) (expects s j n))
      (and (< m (gate s j m n)) (<= (gate s j m n) n)
           (=> (= n (gate s j m n)) (behind s j n (told s j m n)))
           (expects (source s j n) (told s j m n) (gate s j m n))
           (= s (source (source s j n) (told s j m n) (gate s j m n)))))))

(declare-fun begun (Rank) Int) ; operators that r has begun
(declare-fun ended (Rank) Int) ; operators that r has ended
(declare-fun hushed (Rank) Int) ; operators begun when r was last quiet
(declare-fun landed (Rank Slot Int) Bool) ; the flag of operator n is in the slot
(declare-fun taken (Rank Slot Int) Bool) ; s has seen it and issued the clear
(define-fun cleared ((s Rank) (j Slot) (n Int)) Bool (< n (ended s)))

; ---- init => I
(push)
(assert (forall ((r Rank)) (= (begun r) 0)))
(assert (forall ((r Rank)) (= (ended r) 0)))
(assert (forall ((r Rank)) (= (hushed r) 0)))
(assert (forall ((s Rank) (j Slot) (n Int)) (= (landed s j n) false)))
(assert (forall ((s Rank) (j Slot) (n Int)) (= (taken s j n) false)))
(assert (not (and 
(forall ((r Rank)) (and (<= 0 (ended r)) (<= (ended r) (begun r)) (<= (begun r) (+ 1 (ended r)))))
(forall ((r Rank)) (<= (hushed r) (begun r)))
(forall ((s Rank) (j Slot) (n Int)) (=> (landed s j n)
  (and (< n (begun (source s j n))) (=> (quiets s j n) (< n (hushed (source s j n)))))))
(forall ((s Rank) (j Slot) (n Int)) (=> (taken s j n) (landed s j n)))
(forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended s)) (expects s j n)) (taken s j n)))
(forall ((s Rank) (j Slot) (n Int))
  (=> (and (taken s j n) (< (+ 1 n) (hushed s))) (cleared s j n)))
(forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended (source s j n))) (expects s j n) (quiets s j n)) (< n (hushed (source s j n))))))))
(check-sat)
(pop)

; ---- I & begin => I'
(push)
; one operator at a time
(assert (forall ((r Rank)) (and (<= 0 (ended r)) (<= (ended r) (begun r)) (<= (begun r) (+ 1 (ended r))))))
; quiet inside what has begun
(assert (forall ((r Rank)) (<= (hushed r) (begun r))))
; a flag tells that its sender has begun, and, where it is meant to, that it was quiet
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (landed s j n)
  (and (< n (begun (source s j n))) (=> (quiets s j n) (< n (hushed (source s j n))))))))
; what is taken has landed
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (taken s j n) (landed s j n))))
; what has ended has taken all that it expects
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended s)) (expects s j n)) (taken s j n))))
; who was quiet in a later operator has cleared what it took
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (taken s j n) (< (+ 1 n) (hushed s))) (cleared s j n))))
; who has ended was quiet before the flags that tell so
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended (source s j n))) (expects s j n) (quiets s j n)) (< n (hushed (source s j n))))))
(declare-const S Rank) (declare-const J Slot) (declare-const N Int)
(assert (and (= N (ended S)) (= (begun S) N))) ; begin: join
(define-fun begun_1 ((r Rank)) Int (ite (= r S) (+ 1 (begun S)) (begun r)))
(define-fun ended_1 ((r Rank)) Int (ended r))
(define-fun hushed_1 ((r Rank)) Int (hushed r))
(define-fun landed_1 ((s Rank) (j Slot) (n Int)) Bool (landed s j n))
(define-fun taken_1 ((s Rank) (j Slot) (n Int)) Bool (taken s j n))
(define-fun cleared_1 ((s Rank) (j Slot) (n Int)) Bool (< n (ended_1 s)))
(assert (not (and 
(forall ((r Rank)) (and (<= 0 (ended_1 r)) (<= (ended_1 r) (begun_1 r)) (<= (begun_1 r) (+ 1 (ended_1 r)))))
(forall ((r Rank)) (<= (hushed_1 r) (begun_1 r)))
(forall ((s Rank) (j Slot) (n Int)) (=> (landed_1 s j n)
  (and (< n (begun_1 (source s j n))) (=> (quiets s j n) (< n (hushed_1 (source s j n)))))))
(forall ((s Rank) (j Slot) (n Int)) (=> (taken_1 s j n) (landed_1 s j n)))
(forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended_1 s)) (expects s j n)) (taken_1 s j n)))
(forall ((s Rank) (j Slot) (n Int))
  (=> (and (taken_1 s j n) (< (+ 1 n) (hushed_1 s))) (cleared_1 s j n)))
(forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended_1 (source s j n))) (expects s j n) (quiets s j n)) (< n (hushed_1 (source s j n))))))))
(check-sat)
(pop)

; ---- I & quiet => I'
(push)
; one operator at a time
(assert (forall ((r Rank)) (and (<= 0 (ended r)) (<= (ended r) (begun r)) (<= (begun r) (+ 1 (ended r))))))
; quiet inside what has begun
(assert (forall ((r Rank)) (<= (hushed r) (begun r))))
; a flag tells that its sender has begun, and, where it is meant to, that it was quiet
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (landed s j n)
  (and (< n (begun (source s j n))) (=> (quiets s j n) (< n (hushed (source s j n))))))))
; what is taken has landed
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (taken s j n) (landed s j n))))
; what has ended has taken all that it expects
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended s)) (expects s j n)) (taken s j n))))
; who was quiet in a later operator has cleared what it took
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (taken s j n) (< (+ 1 n) (hushed s))) (cleared s j n))))
; who has ended was quiet before the flags that tell so
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended (source s j n))) (expects s j n) (quiets s j n)) (< n (hushed (source s j n))))))
(declare-const S Rank) (declare-const J Slot) (declare-const N Int)
(assert (and (= N (ended S)) (= (begun S) (+ 1 N)))) ; quiet: inside
(assert (forall ((j Slot) (n Int)) (=> (and (< n N) (taken S j n)) (cleared S j n)))) ; quiet: clears
(define-fun begun_1 ((r Rank)) Int (begun r))
(define-fun ended_1 ((r Rank)) Int (ended r))
(define-fun hushed_1 ((r Rank)) Int (ite (= r S) (begun S) (hushed r)))
(define-fun landed_1 ((s Rank) (j Slot) (n Int)) Bool (landed s j n))
(define-fun taken_1 ((s Rank) (j Slot) (n Int)) Bool (taken s j n))
(define-fun cleared_1 ((s Rank) (j Slot) (n Int)) Bool (< n (ended_1 s)))
(assert (not (and 
(forall ((r Rank)) (and (<= 0 (ended_1 r)) (<= (ended_1 r) (begun_1 r)) (<= (begun_1 r) (+ 1 (ended_1 r)))))
(forall ((r Rank)) (<= (hushed_1 r) (begun_1 r)))
(forall ((s Rank) (j Slot) (n Int)) (=> (landed_1 s j n)
  (and (< n (begun_1 (source s j n))) (=> (quiets s j n) (< n (hushed_1 (source s j n)))))))
(forall ((s Rank) (j Slot) (n Int)) (=> (taken_1 s j n) (landed_1 s j n)))
(forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended_1 s)) (expects s j n)) (taken_1 s j n)))
(forall ((s Rank) (j Slot) (n Int))
  (=> (and (taken_1 s j n) (< (+ 1 n) (hushed_1 s))) (cleared_1 s j n)))
(forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended_1 (source s j n))) (expects s j n) (quiets s j n)) (< n (hushed_1 (source s j n))))))))
(check-sat)
(pop)

; ---- I & land => I'
(push)
; one operator at a time
(assert (forall ((r Rank)) (and (<= 0 (ended r)) (<= (ended r) (begun r)) (<= (begun r) (+ 1 (ended r))))))
; quiet inside what has begun
(assert (forall ((r Rank)) (<= (hushed r) (begun r))))
; a flag tells that its sender has begun, and, where it is meant to, that it was quiet
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (landed s j n)
  (and (< n (begun (source s j n))) (=> (quiets s j n) (< n (hushed (source s j n))))))))
; what is taken has landed
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (taken s j n) (landed s j n))))
; what has ended has taken all that it expects
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended s)) (expects s j n)) (taken s j n))))
; who was quiet in a later operator has cleared what it took
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (taken s j n) (< (+ 1 n) (hushed s))) (cleared s j n))))
; who has ended was quiet before the flags that tell so
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended (source s j n))) (expects s j n) (quiets s j n)) (< n (hushed (source s j n))))))
(declare-const S Rank) (declare-const J Slot) (declare-const N Int)
(assert (expects S J N)) ; land: expected
(assert (< N (begun (source S J N)))) ; land: sent
(assert (forall ((i Slot)) (=> (behind S J N i) (taken (source S J N) i N)))) ; land: behind
(assert (=> (quiets S J N) (< N (hushed (source S J N))))) ; land: hush
(assert (not (landed S J N))) ; land: once
(define-fun begun_1 ((r Rank)) Int (begun r))
(define-fun ended_1 ((r Rank)) Int (ended r))
(define-fun hushed_1 ((r Rank)) Int (hushed r))
(define-fun landed_1 ((s Rank) (j Slot) (n Int)) Bool (or (landed s j n) (and (= s S) (= j J) (= n N))))
(define-fun taken_1 ((s Rank) (j Slot) (n Int)) Bool (taken s j n))
(define-fun cleared_1 ((s Rank) (j Slot) (n Int)) Bool (< n (ended_1 s)))
(assert (not (and 
(forall ((r Rank)) (and (<= 0 (ended_1 r)) (<= (ended_1 r) (begun_1 r)) (<= (begun_1 r) (+ 1 (ended_1 r)))))
(forall ((r Rank)) (<= (hushed_1 r) (begun_1 r)))
(forall ((s Rank) (j Slot) (n Int)) (=> (landed_1 s j n)
  (and (< n (begun_1 (source s j n))) (=> (quiets s j n) (< n (hushed_1 (source s j n)))))))
(forall ((s Rank) (j Slot) (n Int)) (=> (taken_1 s j n) (landed_1 s j n)))
(forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended_1 s)) (expects s j n)) (taken_1 s j n)))
(forall ((s Rank) (j Slot) (n Int))
  (=> (and (taken_1 s j n) (< (+ 1 n) (hushed_1 s))) (cleared_1 s j n)))
(forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended_1 (source s j n))) (expects s j n) (quiets s j n)) (< n (hushed_1 (source s j n))))))))
(check-sat)
(pop)

; ---- I & take => I'
(push)
; one operator at a time
(assert (forall ((r Rank)) (and (<= 0 (ended r)) (<= (ended r) (begun r)) (<= (begun r) (+ 1 (ended r))))))
; quiet inside what has begun
(assert (forall ((r Rank)) (<= (hushed r) (begun r))))
; a flag tells that its sender has begun, and, where it is meant to, that it was quiet
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (landed s j n)
  (and (< n (begun (source s j n))) (=> (quiets s j n) (< n (hushed (source s j n))))))))
; what is taken has landed
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (taken s j n) (landed s j n))))
; what has ended has taken all that it expects
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended s)) (expects s j n)) (taken s j n))))
; who was quiet in a later operator has cleared what it took
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (taken s j n) (< (+ 1 n) (hushed s))) (cleared s j n))))
; who has ended was quiet before the flags that tell so
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended (source s j n))) (expects s j n) (quiets s j n)) (< n (hushed (source s j n))))))
(declare-const S Rank) (declare-const J Slot) (declare-const N Int)
(assert (and (= N (ended S)) (= (begun S) (+ 1 N)))) ; take: inside
(assert (expects S J N)) ; take: expected
(assert (landed S J N)) ; take: flag
(assert (not (taken S J N))) ; take: once
(define-fun begun_1 ((r Rank)) Int (begun r))
(define-fun ended_1 ((r Rank)) Int (ended r))
(define-fun hushed_1 ((r Rank)) Int (hushed r))
(define-fun landed_1 ((s Rank) (j Slot) (n Int)) Bool (landed s j n))
(define-fun taken_1 ((s Rank) (j Slot) (n Int)) Bool (or (taken s j n) (and (= s S) (= j J) (= n N))))
(define-fun cleared_1 ((s Rank) (j Slot) (n Int)) Bool (< n (ended_1 s)))
(assert (not (and 
(forall ((r Rank)) (and (<= 0 (ended_1 r)) (<= (ended_1 r) (begun_1 r)) (<= (begun_1 r) (+ 1 (ended_1 r)))))
(forall ((r Rank)) (<= (hushed_1 r) (begun_1 r)))
(forall ((s Rank) (j Slot) (n Int)) (=> (landed_1 s j n)
  (and (< n (begun_1 (source s j n))) (=> (quiets s j n) (< n (hushed_1 (source s j n)))))))
(forall ((s Rank) (j Slot) (n Int)) (=> (taken_1 s j n) (landed_1 s j n)))
(forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended_1 s)) (expects s j n)) (taken_1 s j n)))
(forall ((s Rank) (j Slot) (n Int))
  (=> (and (taken_1 s j n) (< (+ 1 n) (hushed_1 s))) (cleared_1 s j n)))
(forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended_1 (source s j n))) (expects s j n) (quiets s j n)) (< n (hushed_1 (source s j n))))))))
(check-sat)
(pop)

; ---- I & end => I'
(push)
; one operator at a time
(assert (forall ((r Rank)) (and (<= 0 (ended r)) (<= (ended r) (begun r)) (<= (begun r) (+ 1 (ended r))))))
; quiet inside what has begun
(assert (forall ((r Rank)) (<= (hushed r) (begun r))))
; a flag tells that its sender has begun, and, where it is meant to, that it was quiet
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (landed s j n)
  (and (< n (begun (source s j n))) (=> (quiets s j n) (< n (hushed (source s j n))))))))
; what is taken has landed
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (taken s j n) (landed s j n))))
; what has ended has taken all that it expects
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended s)) (expects s j n)) (taken s j n))))
; who was quiet in a later operator has cleared what it took
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (taken s j n) (< (+ 1 n) (hushed s))) (cleared s j n))))
; who has ended was quiet before the flags that tell so
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended (source s j n))) (expects s j n) (quiets s j n)) (< n (hushed (source s j n))))))
(declare-const S Rank) (declare-const J Slot) (declare-const N Int)
(assert (and (= N (ended S)) (= (begun S) (+ 1 N)))) ; end: inside
(assert (forall ((j Slot)) (=> (expects S j N) (taken S j N)))) ; end: waits
(assert (forall ((s Rank) (j Slot)) (=> (and (= S (source s j N)) (expects s j N) (quiets s j N)) (< N (hushed S))))) ; end: speaks
(define-fun begun_1 ((r Rank)) Int (begun r))
(define-fun ended_1 ((r Rank)) Int (ite (= r S) (+ 1 (ended S)) (ended r)))
(define-fun hushed_1 ((r Rank)) Int (hushed r))
(define-fun landed_1 ((s Rank) (j Slot) (n Int)) Bool (landed s j n))
(define-fun taken_1 ((s Rank) (j Slot) (n Int)) Bool (taken s j n))
(define-fun cleared_1 ((s Rank) (j Slot) (n Int)) Bool (< n (ended_1 s)))
(assert (not (and 
(forall ((r Rank)) (and (<= 0 (ended_1 r)) (<= (ended_1 r) (begun_1 r)) (<= (begun_1 r) (+ 1 (ended_1 r)))))
(forall ((r Rank)) (<= (hushed_1 r) (begun_1 r)))
(forall ((s Rank) (j Slot) (n Int)) (=> (landed_1 s j n)
  (and (< n (begun_1 (source s j n))) (=> (quiets s j n) (< n (hushed_1 (source s j n)))))))
(forall ((s Rank) (j Slot) (n Int)) (=> (taken_1 s j n) (landed_1 s j n)))
(forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended_1 s)) (expects s j n)) (taken_1 s j n)))
(forall ((s Rank) (j Slot) (n Int))
  (=> (and (taken_1 s j n) (< (+ 1 n) (hushed_1 s))) (cleared_1 s j n)))
(forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended_1 (source s j n))) (expects s j n) (quiets s j n)) (< n (hushed_1 (source s j n))))))))
(check-sat)
(pop)

; ---- I => not: rows are overwritten that may still be read
(push)
; one operator at a time
(assert (forall ((r Rank)) (and (<= 0 (ended r)) (<= (ended r) (begun r)) (<= (begun r) (+ 1 (ended r))))))
; quiet inside what has begun
(assert (forall ((r Rank)) (<= (hushed r) (begun r))))
; a flag tells that its sender has begun, and, where it is meant to, that it was quiet
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (landed s j n)
  (and (< n (begun (source s j n))) (=> (quiets s j n) (< n (hushed (source s j n))))))))
; what is taken has landed
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (taken s j n) (landed s j n))))
; what has ended has taken all that it expects
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended s)) (expects s j n)) (taken s j n))))
; who was quiet in a later operator has cleared what it took
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (taken s j n) (< (+ 1 n) (hushed s))) (cleared s j n))))
; who has ended was quiet before the flags that tell so
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended (source s j n))) (expects s j n) (quiets s j n)) (< n (hushed (source s j n))))))
(declare-const S Rank) (declare-const J Slot) (declare-const N Int)
(assert (expects S J N)) ; write: expected
(assert (carries S J N)) ; write: carries
(assert (< N (begun (source S J N)))) ; write: sent
(assert (forall ((i Slot)) (=> (behind S J N i) (taken (source S J N) i N)))) ; write: behind
(assert (not (landed S J N))) ; write: data before flag
(assert (not (forall ((m Int)) (=> (and (<= 0 m) (reuse S J m N) (carries S J m)) (< m (ended S))))))
(check-sat)
(pop)

; ---- I => not: a flag arrives where the former one is not cleared: one of them is lost
(push)
; one operator at a time
(assert (forall ((r Rank)) (and (<= 0 (ended r)) (<= (ended r) (begun r)) (<= (begun r) (+ 1 (ended r))))))
; quiet inside what has begun
(assert (forall ((r Rank)) (<= (hushed r) (begun r))))
; a flag tells that its sender has begun, and, where it is meant to, that it was quiet
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (landed s j n)
  (and (< n (begun (source s j n))) (=> (quiets s j n) (< n (hushed (source s j n))))))))
; what is taken has landed
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (taken s j n) (landed s j n))))
; what has ended has taken all that it expects
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended s)) (expects s j n)) (taken s j n))))
; who was quiet in a later operator has cleared what it took
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (taken s j n) (< (+ 1 n) (hushed s))) (cleared s j n))))
; who has ended was quiet before the flags that tell so
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended (source s j n))) (expects s j n) (quiets s j n)) (< n (hushed (source s j n))))))
(declare-const S Rank) (declare-const J Slot) (declare-const N Int)
(assert (expects S J N)) ; land: expected
(assert (< N (begun (source S J N)))) ; land: sent
(assert (forall ((i Slot)) (=> (behind S J N i) (taken (source S J N) i N)))) ; land: behind
(assert (=> (quiets S J N) (< N (hushed (source S J N))))) ; land: hush
(assert (not (landed S J N))) ; land: once
(assert (not (forall ((m Int)) (=> (and (<= 0 m) (reuse S J m N) (expects S J m)) (cleared S J m)))))
(check-sat)
(pop)

; ---- I => not: rows arrive in a partition that is still in use
(push)
; one operator at a time
(assert (forall ((r Rank)) (and (<= 0 (ended r)) (<= (ended r) (begun r)) (<= (begun r) (+ 1 (ended r))))))
; quiet inside what has begun
(assert (forall ((r Rank)) (<= (hushed r) (begun r))))
; a flag tells that its sender has begun, and, where it is meant to, that it was quiet
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (landed s j n)
  (and (< n (begun (source s j n))) (=> (quiets s j n) (< n (hushed (source s j n))))))))
; what is taken has landed
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (taken s j n) (landed s j n))))
; what has ended has taken all that it expects
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended s)) (expects s j n)) (taken s j n))))
; who was quiet in a later operator has cleared what it took
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (taken s j n) (< (+ 1 n) (hushed s))) (cleared s j n))))
; who has ended was quiet before the flags that tell so
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended (source s j n))) (expects s j n) (quiets s j n)) (< n (hushed (source s j n))))))
(declare-const S Rank) (declare-const J Slot) (declare-const N Int)
(assert (expects S J N)) ; write: expected
(assert (carries S J N)) ; write: carries
(assert (< N (begun (source S J N)))) ; write: sent
(assert (forall ((i Slot)) (=> (behind S J N i) (taken (source S J N) i N)))) ; write: behind
(assert (not (landed S J N))) ; write: data before flag
(assert (not (forall ((m Int)) (=> (and (<= 0 m) (reuse S J m N)) (< m (ended S))))))
(check-sat)
(pop)

; ---- I => not: rows arrive after their flag was taken
(push)
; one operator at a time
(assert (forall ((r Rank)) (and (<= 0 (ended r)) (<= (ended r) (begun r)) (<= (begun r) (+ 1 (ended r))))))
; quiet inside what has begun
(assert (forall ((r Rank)) (<= (hushed r) (begun r))))
; a flag tells that its sender has begun, and, where it is meant to, that it was quiet
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (landed s j n)
  (and (< n (begun (source s j n))) (=> (quiets s j n) (< n (hushed (source s j n))))))))
; what is taken has landed
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (taken s j n) (landed s j n))))
; what has ended has taken all that it expects
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended s)) (expects s j n)) (taken s j n))))
; who was quiet in a later operator has cleared what it took
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (taken s j n) (< (+ 1 n) (hushed s))) (cleared s j n))))
; who has ended was quiet before the flags that tell so
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended (source s j n))) (expects s j n) (quiets s j n)) (< n (hushed (source s j n))))))
(declare-const S Rank) (declare-const J Slot) (declare-const N Int)
(assert (expects S J N)) ; write: expected
(assert (carries S J N)) ; write: carries
(assert (< N (begun (source S J N)))) ; write: sent
(assert (forall ((i Slot)) (=> (behind S J N i) (taken (source S J N) i N)))) ; write: behind
(assert (not (landed S J N))) ; write: data before flag
(assert (not (not (taken S J N))))
(check-sat)
(pop)

; ---- I => not: rows are read that have not arrived
(push)
; one operator at a time
(assert (forall ((r Rank)) (and (<= 0 (ended r)) (<= (ended r) (begun r)) (<= (begun r) (+ 1 (ended r))))))
; quiet inside what has begun
(assert (forall ((r Rank)) (<= (hushed r) (begun r))))
; a flag tells that its sender has begun, and, where it is meant to, that it was quiet
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (landed s j n)
  (and (< n (begun (source s j n))) (=> (quiets s j n) (< n (hushed (source s j n))))))))
; what is taken has landed
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (taken s j n) (landed s j n))))
; what has ended has taken all that it expects
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended s)) (expects s j n)) (taken s j n))))
; who was quiet in a later operator has cleared what it took
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (taken s j n) (< (+ 1 n) (hushed s))) (cleared s j n))))
; who has ended was quiet before the flags that tell so
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended (source s j n))) (expects s j n) (quiets s j n)) (< n (hushed (source s j n))))))
(declare-const S Rank) (declare-const J Slot) (declare-const N Int)
(assert (and (= N (ended S)) (= (begun S) (+ 1 N)))) ; read: inside
(assert (taken S J N)) ; read: covered
(assert (not (landed S J N)))
(check-sat)
(pop)

; ---- I => some rank below N + 1 can move
(push)
; one operator at a time
(assert (forall ((r Rank)) (and (<= 0 (ended r)) (<= (ended r) (begun r)) (<= (begun r) (+ 1 (ended r))))))
; quiet inside what has begun
(assert (forall ((r Rank)) (<= (hushed r) (begun r))))
; a flag tells that its sender has begun, and, where it is meant to, that it was quiet
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (landed s j n)
  (and (< n (begun (source s j n))) (=> (quiets s j n) (< n (hushed (source s j n))))))))
; what is taken has landed
(assert (forall ((s Rank) (j Slot) (n Int)) (=> (taken s j n) (landed s j n))))
; what has ended has taken all that it expects
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended s)) (expects s j n)) (taken s j n))))
; who was quiet in a later operator has cleared what it took
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (taken s j n) (< (+ 1 n) (hushed s))) (cleared s j n))))
; who has ended was quiet before the flags that tell so
(assert (forall ((s Rank) (j Slot) (n Int))
  (=> (and (<= 0 n) (< n (ended (source s j n))) (expects s j n) (quiets s j n)) (< n (hushed (source s j n))))))
(declare-fun height (Rank Slot Int) Int)
(assert (forall ((s Rank) (j Slot) (n Int) (i Slot)) (=> (behind s j n i)
  (and (expects (source s j n) i n) (< (height (source s j n) i n) (height s j n))))))
(declare-const least Rank) (declare-const low Rank) (declare-const lowest Slot) (declare-const goal Int)
(define-fun misses ((r Rank) (j Slot)) Bool (and (expects r j (ended least)) (not (taken r j (ended least)))))
(define-fun sender () Rank (source low lowest (ended least)))
(assert (forall ((r Rank)) (<= (ended least) (ended r)))) ; one of them has ended fewest
(assert (forall ((r Rank) (j Slot)) (=> (misses r j) (and (misses low lowest)
  (<= (height low lowest (ended least)) (height r j (ended least))))))) ; and misses the lowest flag, if any
(assert (and (<= 0 (ended least)) (<= (ended least) goal)))
(assert (forall ((S Rank) (J Slot) (N Int)) (not (and (<= N goal) (or (= S least) (= S low) (= S sender)) (and (= N (ended S)) (= (begun S) N)))))) ; begin
(assert (forall ((S Rank) (J Slot) (N Int)) (not (and (<= N goal) (or (= S least) (= S low) (= S sender)) (< (hushed S) (begun S)) (and (= N (ended S)) (= (begun S) (+ 1 N)))(forall ((j Slot) (n Int)) (=> (and (< n N) (taken S j n)) (cleared S j n))))))) ; quiet
(assert (forall ((S Rank) (J Slot) (N Int)) (not (and (<= N goal) (= S low) (= J lowest) (expects S J N)(< N (begun (source S J N)))(forall ((i Slot)) (=> (behind S J N i) (taken (source S J N) i N)))(=> (quiets S J N) (< N (hushed (source S J N))))(not (landed S J N)))))) ; land
(assert (forall ((S Rank) (J Slot) (N Int)) (not (and (<= N goal) (= S low) (= J lowest) (and (= N (ended S)) (= (begun S) (+ 1 N)))(expects S J N)(landed S J N)(not (taken S J N)))))) ; take
(assert (forall ((S Rank) (J Slot) (N Int)) (not (and (<= N goal) (or (= S least) (= S low) (= S sender)) (and (= N (ended S)) (= (begun S) (+ 1 N)))(forall ((j Slot)) (=> (expects S j N) (taken S j N)))(forall ((s Rank) (j Slot)) (=> (and (= S (source s j N)) (expects s j N) (quiets s j N)) (< N (hushed S)))))))) ; end
(check-sat)
(pop)

(reset)
; hierarchy, 2 partitions, near writes behind entered: true => premise
(declare-sort Rank 0)
(declare-sort Slot 0)
(declare-fun expects (Rank Slot Int) Bool) ; rank s ends operator n only after it has the flag in its slot j
(declare-fun source (Rank Slot Int) Rank) ; who sends that flag
(declare-fun carries (Rank Slot Int) Bool) ; and whether rows come with it
(declare-fun quiets (Rank Slot Int) Bool) ; and whether its sender is quiet before it sends it
(declare-fun behind (Rank Slot Int Slot) Bool) ; its sender sends both after it took that flag of its own in n
(declare-fun reuse (Rank Slot Int Int) Bool) ; operator n uses the slot of the earlier operator m
(declare-fun gate (Rank Slot Int Int) Int)
(declare-fun told (Rank Slot Int Int) Slot)

(declare-fun near (Rank Rank) Bool)
(declare-fun namesake (Rank Rank) Bool)
(declare-fun entered (Rank) Slot) ; in which its near ranks hear that this one has entered
(declare-fun end (Rank) Slot) ; in which its namesakes get the end flag of its stream
(assert (forall ((r Rank) (s Rank) (n Int)) (and
  (=> (near r s) (and (expects r (entered s) n) (= s (source r (entered s) n))))
  (=> (namesake r s) (and (expects r (end s) n) (= s (source r (end s) n)))))))
(assert (forall ((s Rank) (j Slot) (m Int) (n Int)) (=> (and (expects s j n) (reuse s j m n))
  (ite (near (source s j n) s) (and (< m n) (behind s j n (entered s)))
       (and (namesake (source s j n) s) (<= (+ m 2) n))))))
(assert (not (forall ((s Rank) (j Slot) (m Int) (n Int))
  (=> (and (<= 0 m) (reuse s j m n) (expects s j n))
      (and (< m (ite (near (source s j n) s) n (- n 1))) (<= (ite (near (source s j n) s) n (- n 1)) n)
           (=> (= n (ite (near (source s j n) s) n (- n 1))) (behind s j n (ite (near (source s j n) s) (entered s) (end s))))
           (expects (source s j n) (ite (near (source s j n) s) (entered s) (end s)) (ite (near (source s j n) s) n (- n 1)))
           (= s (source (source s j n) (ite (near (source s j n) s) (entered s) (end s)) (ite (near (source s j n) s) n (- n 1)))))))))
(check-sat)
