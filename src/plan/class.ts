/** Which class a workspace should have. Pure; it never looks at what exists. */
import type { Class } from './model.ts';

/** Payment statuses that count as paid unless the config says otherwise (the words of common billing systems). */
export const DEFAULT_PAID_STATUSES = ['active', 'trialing', 'past_due'] as const;

/**
 * The wanted class: a forced class wins; otherwise `dedicated` when the payment status is a paid one, else `free`.
 * Statuses are compared exactly (case included): a status that differs in case is another status.
 */
export function assignClass(
  wish: { readonly paymentStatus: string | null; readonly forcedClass: Class | null },
  paidStatuses: readonly string[] = DEFAULT_PAID_STATUSES,
): Class {
  if (wish.forcedClass !== null) return wish.forcedClass;
  return wish.paymentStatus !== null && paidStatuses.includes(wish.paymentStatus) ? 'dedicated' : 'free';
}

/** The shape of a payment status: one word of at most 64 characters. Whether it is a known one is the config's business. */
export function isPaymentStatus(value: unknown): value is string {
  return typeof value === 'string' && /^[\w.-]{1,64}$/.test(value);
}
